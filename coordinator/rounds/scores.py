"""Store clients' scores, within limits that bound the writes of a client."""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from coordinator.db.clock import clock
from coordinator.db.engine import run
from coordinator.db.tables.federations import FederationRow, ParticipationRow, RoundRow, ScoresRow
from coordinator.errors import NotFound, NotJoined, RoundClosed, SecureSumRequired
from coordinator.rounds import queries
from schemas.messages.scores import Scores

OPEN_ROUNDS = 2
"""The newest published rounds that accept scores; later rounds accept them as well."""

MOST_CHANGES = 10
"""Most replacements of a client's scores of a round."""

LEAST_CLIENTS = 3
"""The smallest number of other clients whose mean score a client sees."""

_CONTEXT = (
    select(
        clock(),
        RoundRow.id,
        RoundRow.state.label("round_state"),
        FederationRow.state,
        ParticipationRow.client_id,
        ScoresRow.scores,
        ScoresRow.changes,
        FederationRow.plan,
    )
    .join(FederationRow, FederationRow.id == RoundRow.federation_id)
    .outerjoin(
        ParticipationRow,
        (ParticipationRow.round_id == RoundRow.id) & (ParticipationRow.client_id == bindparam("client")),
    )
    .outerjoin(ScoresRow, (ScoresRow.round_id == RoundRow.id) & (ScoresRow.client_id == bindparam("client")))
    .where(RoundRow.federation_id == bindparam("federation_id"), RoundRow.number == bindparam("number"))
)
_PUBLISHED = (
    select(RoundRow.number)
    .where(RoundRow.federation_id == bindparam("federation_id"), RoundRow.state == "published")
    .order_by(RoundRow.number.desc())
    .limit(1)
)
_OLDEST_OPEN = _PUBLISHED.offset(OPEN_ROUNDS - 1)
_UPSERT = {
    kind: start.on_conflict_do_update(
        index_elements=[ScoresRow.round_id, ScoresRow.client_id],
        set_={
            "scores": start.excluded.scores,
            "received_at": start.excluded.received_at,
            "changes": start.excluded.changes,
        },
    )
    for kind, start in (("sqlite", sqlite.insert(ScoresRow)), ("postgresql", postgresql.insert(ScoresRow)))
}


def are_accepted(session: Session, federation_id: str, round_number: int) -> bool:
    oldest = run(session, _OLDEST_OPEN, {"federation_id": federation_id}).scalar()
    return oldest is None or round_number >= oldest


def are_complete(session: Session, round_id: int, round_state: str) -> bool:
    """Whether clients may see a round's means: all delivered clients, at least three, have sent scores."""
    arrived = queries.tallies(session, round_id).get("arrived")
    return (
        round_state == "published"
        and arrived is not None
        and arrived.scores == arrived.clients >= LEAST_CLIENTS
    )


def mixing_verdicts(session: Session, federation_id: str) -> dict[int, dict[str, int]]:
    """Count a round's clients for which mixing made the loss better, worse, or neither, by round number.

    Clients without a measured change, or whose scores have not arrived yet, are not counted; rounds without
    any are left out.
    """
    stored = session.execute(
        select(RoundRow.number, ScoresRow.scores)
        .join(RoundRow, RoundRow.id == ScoresRow.round_id)
        .where(RoundRow.federation_id == federation_id)
        .order_by(RoundRow.number)
    )
    counts: dict[int, dict[str, int]] = {}
    for number, scores in stored:
        change = Scores.model_validate(scores).mixing
        if change is not None:
            counts.setdefault(number, {"better": 0, "worse": 0, "noise": 0})[change.verdict] += 1
    return counts


def store_scores(
    session: Session, federation_id: str, round_number: int, client_id: str, sent: Scores
) -> bool:
    """Store a client's scores of a round in place of earlier ones; the caller holds the federation's lock.

    After the federation is finished a client may send scores that it has not sent, and add the scores of the
    final weights to its scores of the last published round.

    Returns:
        Whether the stored scores changed: equal scores are not written again.

    Raises:
        NotFound: the round does not exist.
        SecureSumRequired: scores are summed, and none are stored by name.
        NotJoined: the client did not join it.
        RoundClosed: the round is too old, the federation is finished, or not yet for final scores, or the
            scores changed too often, or clients may see their mean.
    """
    scores = sent.model_dump(mode="json")
    context = run(
        session, _CONTEXT, {"federation_id": federation_id, "number": round_number, "client": client_id}
    ).first()
    if context is None:
        raise NotFound
    now, round_id, round_state, state, joined, stored, changes, plan = context
    if plan["privacy"]["secure_sum"] is not None and plan["privacy"]["secure_sum"]["scores"] == "summed":
        raise SecureSumRequired("scores are summed (privacy.secure_sum.scores); send none by name")
    if joined is None:
        raise NotJoined
    # A repetition is no replacement, of which there are only a few.
    if stored == scores:
        return False
    _refuse_closed(session, federation_id, round_number)
    if sent.final is not None:
        _refuse_early_final(session, federation_id, round_number, state)
    if stored is not None and not _adds_final(stored, scores):
        if state == "finished":
            raise RoundClosed("the federation is finished; the stored scores of this round stay")
        # Clients may see the mean by now: its change would show this client's scores.
        if are_complete(session, round_id, round_state):
            raise RoundClosed("all clients' scores of this round have arrived; the stored scores stay")
        if changes >= MOST_CHANGES:
            raise RoundClosed(f"these scores were replaced {MOST_CHANGES} times; the stored scores stay")
    row = {
        "round_id": round_id,
        "client_id": client_id,
        "scores": scores,
        "received_at": now,
        "changes": changes + 1 if stored is not None else 0,
    }
    run(session, _UPSERT[session.get_bind().dialect.name], row)
    return True


def _refuse_closed(session: Session, federation_id: str, round_number: int) -> None:
    if not are_accepted(session, federation_id, round_number):
        raise RoundClosed(
            f"the round is too old; send scores of the newest {OPEN_ROUNDS} published rounds or later"
        )


def _refuse_early_final(session: Session, federation_id: str, round_number: int, state: str) -> None:
    """Raise RoundClosed unless a round is the last published one of a finished federation."""
    if state != "finished":
        raise RoundClosed("`final` is accepted once the federation is finished; send the scores without it")
    last = run(session, _PUBLISHED, {"federation_id": federation_id}).scalar()
    if round_number != last:
        raise RoundClosed(f"`final` belongs to the last published round, {last}; send it with that round")


def _adds_final(stored: dict[str, Any], scores: dict[str, Any]) -> bool:
    final_unset = {"final": None, "final_kept": True}
    return stored["final"] is None and scores["final"] is not None and stored == scores | final_unset
