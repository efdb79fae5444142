"""Move the sessions of a round's sum: open them, close their phases, abort them and begin again.

Each function needs the caller's write transaction with the federation's row locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from coordinator.db.engine import Database, database_time
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.federations import FederationRow, RoundRow
from coordinator.db.tables.secure_sum import SumSessionRow
from coordinator.errors import StrategyUnavailable
from coordinator.federations.store import federation as load_federation
from coordinator.federations.store import plan_of
from coordinator.observability.logs import logger
from coordinator.rounds import store as rounds
from coordinator.rounds import transitions
from coordinator.rounds.lifecycle import SUM_FAILED
from coordinator.secure_sum import announcements, store
from coordinator.secure_sum.counts import countable, outcome_of, starved
from coordinator.secure_sum.new_terms import ReadyClient, new_terms, ready_clients, summed_plan
from coordinator.secure_sum.phases import Phase, PhaseFacts, decide, following, preceding
from coordinator.secure_sum.session_terms import is_of_earlier_version, terms_of
from coordinator.storage.server_key import ServerKey
from schemas.messages.secure_sum import SumKind, SumTerms
from schemas.secure_sum.terms import terms_hash

TOO_FEW_MEMBERS = "too-few-members"
"""Reason: fewer clients are ready than the plan's minimum."""

EARLIER_VERSION = "the coordinator was upgraded, and opens sums of its own format only"
"""Reason: the session began under another version, in which masks are derived in another way."""

log = logger(__name__)


def facts_of(session: Session, row: SumSessionRow, terms: SumTerms) -> PhaseFacts | None:
    """Return the facts on the open phase of a session; None while its sum is computed.

    Members that were revoked are not waited for.
    """
    if row.state == store.OPENING or not store.is_live(row):
        return None
    phase = _phase_of(row)
    expected = len(_invited(row, terms, phase) - store.revoked_unheard(session, row.id, phase))
    answered = store.count_answered(session, row.id, phase)
    return PhaseFacts(phase, expected, answered, row.phase_opened_at)


def open_first(
    session: Session, federation: FederationRow, row: RoundRow, now: datetime, key: ServerKey
) -> None:
    """Open the first session of a round, or abandon the round if too few clients are left."""
    if not _open(session, federation, row, 1, ready_clients(session, row.id, excluded=()), now, key):
        transitions.abandon(session, federation, row, TOO_FEW_MEMBERS)


def advance(session: Session, row: RoundRow, summed: SumSessionRow, now: datetime, key: ServerKey) -> bool:
    """Close or abort the open phase of a session if that is due; return whether it was."""
    terms = terms_of(summed)
    if is_of_earlier_version(terms):
        _abandon(session, row, summed, now)
        return True
    facts = facts_of(session, summed, terms)
    if facts is None:
        return False
    match decide(terms, facts, now):
        case "wait":
            return False
        case "close" if facts.phase == "masked" and (groups := _starved(session, row, terms, facts)):
            reason = f"too few members are left of {', '.join(groups)}"
            answered = store.answered(session, summed.id, facts.phase)
            abort(session, row, summed, reason, now, key, alive=answered)
        case "close":
            _close(session, row, summed, facts.phase, now)
        case "abort":
            reason = f"too few members answered step {facts.phase}"
            answered = store.answered(session, summed.id, facts.phase)
            abort(session, row, summed, reason, now, key, alive=answered)
    return True


def abort(
    session: Session,
    row: RoundRow,
    summed: SumSessionRow,
    reason: str,
    now: datetime,
    key: ServerKey,
    *,
    alive: Sequence[int],
) -> None:
    """Abort a session, and open the next one with the members that still answer, or abandon the round.

    `alive` are the positions of the members that answered the last phase.
    """
    federation = load_federation(session, row.federation_id)
    client_ids = store.members(session, summed.id)
    store.end(session, federation.id, summed, "aborted", now, reason=reason)
    announcements.aborted(session, federation.id, row, summed)
    attempts = summed_plan(plan_of(federation)).attempts
    if store.count_aborted(session, row.id) < attempts:
        candidates = _able_clients(session, row, terms_of(summed).kind)
        answering = {client_ids[position] for position in alive}
        # If too few members answered, all are invited: slow members may have reconnected.
        for invited in (answering, set(client_ids.values())):
            clients = [client for client in candidates if client.client_id in invited]
            if _open(session, federation, row, summed.number + 1, clients, now, key):
                return
    transitions.abandon_sum(session, federation, row, SUM_FAILED)


def open_after_counts(
    session: Session, federation: FederationRow, row: RoundRow, counts: SumSessionRow, key: ServerKey
) -> None:
    """Open the sum of a round whose counts are done in this transaction, or abandon the round.

    Raises:
        SumOutOfRange: a member spoilt the counts.
    """
    outcome_of(session, row.id)
    clients, now = _able_clients(session, row, "sum"), database_time(session)
    if not _open(session, federation, row, counts.number + 1, clients, now, key):
        transitions.abandon_sum(session, federation, row, SUM_FAILED)


def drive(database: Database, key: ServerKey) -> bool:
    """Open sessions, and close or abort phases that are due; return whether there were any."""
    # Read without a lock; each round is decided again under the lock of its federation.
    with database.read() as session:
        now = database_time(session)
        due = [
            (row.federation_id, row.number)
            for row, summed in store.summing(session)
            if _is_due(session, summed, now)
        ]
    moved = [_drive_round(database, federation_id, number, key) for federation_id, number in due]
    return any(moved)


def _drive_round(database: Database, federation_id: str, round_number: int, key: ServerKey) -> bool:
    try:
        with database.write() as session:
            federation = lock_federation(session, federation_id)
            row = rounds.get_round(session, federation_id, round_number, lock=True)
            if row.state != "summing":
                return False
            now, summed = database_time(session), store.newest(session, row.id)
            # Decided here and not when the round closes, so that a worker that died in between changes
            # nothing.
            if summed is None:
                open_first(session, federation, row, now, key)
                return True
            return advance(session, row, summed, now, key)
    # The round waits until the strategy is installed again.
    except StrategyUnavailable as unavailable:
        log.warning("sum-delayed", federation=federation_id, round=round_number, reason=str(unavailable))
        return False


def _is_due(session: Session, summed: SumSessionRow | None, now: datetime) -> bool:
    if summed is None:
        return True
    terms = terms_of(summed)
    if is_of_earlier_version(terms):
        return True
    facts = facts_of(session, summed, terms)
    return facts is not None and decide(terms, facts, now) != "wait"


def _abandon(session: Session, row: RoundRow, summed: SumSessionRow, now: datetime) -> None:
    """Abandon a round whose sum began under another version of the coordinator."""
    federation = load_federation(session, row.federation_id)
    store.end(session, federation.id, summed, "aborted", now, reason=EARLIER_VERSION)
    announcements.aborted(session, federation.id, row, summed)
    transitions.abandon_sum(session, federation, row, SUM_FAILED)


def _open(
    session: Session,
    federation: FederationRow,
    row: RoundRow,
    number: int,
    clients: Sequence[ReadyClient],
    now: datetime,
    key: ServerKey,
) -> bool:
    """Open a session with these clients; return False if they are too few."""
    terms = new_terms(session, federation, row, number, clients, key)
    if terms is None:
        return False
    summed = store.open_session(session, federation.id, row.id, terms, terms_hash(terms), now)
    announcements.opened(session, federation.id, row, summed, terms)
    return True


def _able_clients(session: Session, row: RoundRow, kind: SumKind) -> list[ReadyClient]:
    """Return the clients that may take part in another session of a kind; after counts, counted ones only."""
    candidates = ready_clients(session, row.id, excluded=store.spent(session, row.id, kind))
    countable_clients = countable(session, row.id)
    if countable_clients is None:
        return candidates
    return [client for client in candidates if client.client_id in countable_clients]


def _starved(session: Session, row: RoundRow, terms: SumTerms, facts: PhaseFacts) -> list[str]:
    """Return the groups that no member would unmask, since too many counted members are absent."""
    k_min = summed_plan(plan_of(load_federation(session, row.federation_id))).k_min
    return starved(session, row.id, terms, facts.answered, k_min)


def _close(session: Session, row: RoundRow, summed: SumSessionRow, phase: Phase, now: datetime) -> None:
    answered = store.answered(session, summed.id, phase)
    following_phase = following(terms_of(summed), phase)
    store.close_phase(session, row.federation_id, summed, following_phase or store.OPENING, answered, now)
    log.info("sum-phase-closed", round=row.number, session=summed.number, step=phase, members=len(answered))


def _phase_of(row: SumSessionRow) -> Phase:
    step = store.step_of(row)
    if step == "opening":
        raise LookupError("a session that is being opened has no open phase")
    return step


def _invited(row: SumSessionRow, terms: SumTerms, phase: Phase) -> set[int]:
    """Return the positions of the members that may answer a phase: those who answered the one before."""
    before = preceding(terms, phase)
    if before is None:
        return set(range(len(terms.members)))
    return set(store.closed_set(row, before) or ())
