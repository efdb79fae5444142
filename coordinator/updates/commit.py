"""Commit validated updates: one write transaction for those of a round that are ready at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.auth.authentication import Member, still_member
from coordinator.db.engine import Database
from coordinator.db.federation_lock import hold_federation
from coordinator.errors import RoundClosed, UploadConflict
from coordinator.observability.fault_points import may_crash
from coordinator.rounds import store as rounds
from coordinator.rounds import transitions
from coordinator.rounds.lifecycle import ACCEPTING
from coordinator.rounds.notifications import Change
from coordinator.updates import store
from coordinator.updates.store import Content
from coordinator.updates.validation import ValidationResult
from schemas.maths.adapter import Layout
from schemas.messages.updates import Receipt


@dataclass(frozen=True, slots=True)
class ValidatedUpdate:
    """A client's validated update of one round.

    Attributes:
        pack: digest of the alignment pack that the update was trained with, if any.
        state: the decoded adapter state, or the offset of the state in the received bytes.
    """

    member: Member
    round_number: int
    pack: str | None
    received: Content
    state: Content | int
    layout: Layout
    result: ValidationResult

    @property
    def contents(self) -> tuple[Content, ...]:
        return (self.received,) if isinstance(self.state, int) else (self.received, self.state)

    @property
    def bytes(self) -> int:
        return sum(content.size for content in self.contents)

    def stored_payload(self, payload_ids: Mapping[str, int]) -> store.StoredPayload:
        payload_id = payload_ids[self.received.digest]
        if isinstance(self.state, int):
            return store.StoredPayload(payload_id, payload_id, self.state)
        return store.StoredPayload(payload_id, payload_ids[self.state.digest], 0)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The outcome of committing an update.

    Attributes:
        is_new: whether this commit stored it; False = an earlier request did.
        closed_round: whether the round stopped waiting for updates.
        change: the notification to send; None = nothing to send, or an event was written already.
    """

    receipt: Receipt
    is_new: bool = False
    closed_round: bool = False
    change: Change | None = None


def commit_updates(database: Database, updates: Sequence[ValidatedUpdate]) -> list[CommitResult]:
    """Commit updates of one round, all of them or none, and return a result for each.

    The first commit of a client wins: a repeated one with the same bytes returns the stored receipt.

    Raises:
        KeyRevoked, CredentialInvalid, UploadConflict, RoundClosed: for at least one of the updates.
    """
    federation_id, round_number = updates[0].member.federation_id, updates[0].round_number
    with database.write() as session:
        contents = (content for update in updates for content in update.contents)
        # Payloads before the federation's lock: writing megabytes under it would hold up all other
        # requests.
        payload_ids = store.store_payloads(session, contents)
        last_event = hold_federation(session, federation_id)
        # Under the lock, since a revocation that comes first must win.
        for update in updates:
            still_member(session, update.member)
        row = rounds.get_round(session, federation_id, round_number, lock=True)
        now, stored = store.receipts(session, row.id, [update.member.client_id for update in updates])
        for update in updates:
            receipt = stored.get(update.member.client_id)
            if receipt is not None and receipt.digest != update.received.digest:
                raise UploadConflict(accepted=receipt.digest)
        new = [update for update in updates if update.member.client_id not in stored]
        if not new:
            return [CommitResult(stored[update.member.client_id]) for update in updates]
        if row.state not in ACCEPTING:
            raise RoundClosed(state=row.state)
        inserted = store.insert_updates(session, row, [_accepted(update, payload_ids) for update in new], now)
        is_announced = transitions.advance(session, row, now)
        may_crash("update-written")
        change = None if is_announced else Change(federation_id, round_number, last_event)
        closed = row.state == "closing"
        return [
            CommitResult(stored[client_id])
            if client_id in stored
            else CommitResult(inserted[client_id], is_new=True, closed_round=closed, change=change)
            for client_id in (update.member.client_id for update in updates)
        ]


def _accepted(update: ValidatedUpdate, payload_ids: Mapping[str, int]) -> store.AcceptedUpdate:
    return store.AcceptedUpdate(
        client_id=update.member.client_id,
        received=update.received,
        stored=update.stored_payload(payload_ids),
        result=update.result,
        layout=update.layout,
        pack=update.pack,
    )
