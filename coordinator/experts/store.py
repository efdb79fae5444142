"""Store a bank of experts: its state after each round, and the revisions of its experts.

Every change needs the caller's write transaction with the federation's row locked.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.experts import BankRoundRow, ExpertRevisionRow, ExpertRow
from coordinator.experts.bank import Bank, Expert, Outcome, RoundSums

_EXPERTS = (
    select(ExpertRow)
    .where(ExpertRow.federation_id == bindparam("federation_id"))
    .order_by(ExpertRow.expert)
    .execution_options(populate_existing=True)
)
_LAST_MEMORY = (
    select(BankRoundRow.memory)
    .where(BankRoundRow.federation_id == bindparam("federation_id"))
    .order_by(BankRoundRow.round_number.desc())
    .limit(1)
)
_LAST_ROUND = select(func.max(BankRoundRow.round_number)).where(
    BankRoundRow.federation_id == bindparam("federation_id")
)
_UNTIL = (
    select(ExpertRevisionRow.expert, func.max(ExpertRevisionRow.round_number).label("round_number"))
    .where(
        ExpertRevisionRow.federation_id == bindparam("federation_id"),
        ExpertRevisionRow.round_number <= bindparam("until"),
    )
    .group_by(ExpertRevisionRow.expert)
    .subquery()
)
_NEWEST_REVISIONS = select(ExpertRevisionRow).join(
    _UNTIL,
    (ExpertRevisionRow.expert == _UNTIL.c.expert)
    & (ExpertRevisionRow.round_number == _UNTIL.c.round_number)
    & (ExpertRevisionRow.federation_id == bindparam("federation_id")),
)
_COLUMNS = tuple(field.name for field in fields(Expert))


@dataclass(frozen=True, slots=True)
class Revision:
    """The values of an expert after a round: a stored payload with its digest.

    `contributors` is the number of members that were counted in its group; 0 before the first sum.
    """

    expert: int
    round_number: int
    payload_id: int
    digest: str
    bytes: int
    contributors: int


def load(session: Session, federation_id: str) -> Bank | None:
    """Return a federation's bank as the last summed round left it; None = it has none."""
    rows = session.scalars(_EXPERTS, {"federation_id": federation_id}).all()
    if not rows:
        return None
    experts = tuple(Expert(**{name: getattr(row, name) for name in _COLUMNS}) for row in rows)
    memory = run(session, _LAST_MEMORY, {"federation_id": federation_id}).scalar()
    return Bank(experts) if memory is None else _remembering(experts, memory)


def last_round(session: Session, federation_id: str) -> int:
    """Return the last round that the bank was summed in; 0 before the first."""
    return run(session, _LAST_ROUND, {"federation_id": federation_id}).scalar() or 0


def store_round(
    session: Session, federation_id: str, round_number: int, sums: RoundSums, outcome: Outcome
) -> None:
    """Store the bank after a round, what the round's sums were, and what changed for which reason.

    Raises:
        IntegrityError: the round was stored before.
    """
    # All rows: a round changes the prior and utilisation of every active expert.
    for expert in outcome.bank.experts:
        session.merge(ExpertRow(federation_id=federation_id, **asdict(expert)))
    session.add(
        BankRoundRow(
            federation_id=federation_id,
            round_number=round_number,
            sums=_sums(sums),
            events=[asdict(event) for event in outcome.events],
            memory=_memory(outcome.bank),
        )
    )
    session.flush()


def add_revision(session: Session, federation_id: str, revision: Revision) -> None:
    """Store a revision of an expert of the bank.

    Raises:
        IntegrityError: there is no such expert, or it has a revision of this round.
    """
    session.add(ExpertRevisionRow(federation_id=federation_id, **asdict(revision)))
    session.flush()


def revisions(session: Session, federation_id: str, until: int) -> dict[int, Revision]:
    """Return the newest revision of each expert after round `until`, by expert.

    Raises:
        LookupError: retention has deleted the payload of one.
    """
    newest: dict[int, Revision] = {}
    names = [field.name for field in fields(Revision)]
    for row in session.scalars(_NEWEST_REVISIONS, {"federation_id": federation_id, "until": until}):
        if row.payload_id is None:
            raise LookupError(f"revision {row.round_number} of expert {row.expert} was deleted by retention")
        newest[row.expert] = Revision(**{name: getattr(row, name) for name in names})
    return dict(sorted(newest.items()))


def _sums(sums: RoundSums) -> dict[str, Any]:
    """Return sums as JSON, whose keys are strings."""
    return {
        "members": sums.counts.members,
        "users": {str(expert): count for expert, count in sums.counts.users.items()},
        "rejects": sums.counts.rejects,
        "responsibilities": {str(expert): total for expert, total in sums.responsibilities.items()},
        "has_newborn": sums.has_newborn,
    }


def _memory(bank: Bank) -> dict[str, Any]:
    return {
        "rejected": bank.rejected,
        "alike": [[*pair, rounds] for pair, rounds in sorted(bank.alike.items())],
        "last_birth": bank.last_birth,
        "last_prune": bank.last_prune,
    }


def _remembering(experts: tuple[Expert, ...], memory: dict[str, Any]) -> Bank:
    return Bank(
        experts,
        rejected=memory["rejected"],
        alike={(first, second): rounds for first, second, rounds in memory["alike"]},
        last_birth=memory["last_birth"],
        last_prune=memory["last_prune"],
    )
