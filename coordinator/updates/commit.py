"""Keep updates that were judged: one write transaction for those of a round that are ready at the same time.

The database arbitrates: of two deliveries at once the first commit wins, and the same bytes get its receipt.
"""

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
from coordinator.rounds.lifecycle import TAKING_PART
from coordinator.rounds.notifications import Change
from coordinator.updates import store
from coordinator.updates.store import Content
from coordinator.updates.validation import Verdict
from schemas.maths.adapter import Layout
from schemas.messages.updates import Receipt


@dataclass(frozen=True, slots=True)
class Ready:
    """A judged update of a client, for the round of this number.

    Attributes:
        pack: the digest of the alignment pack it was made with, if any.
        state: the decoded adapter state, or where it begins in the received bytes.
    """

    member: Member
    number: int
    pack: str | None
    received: Content
    state: Content | int
    layout: Layout
    verdict: Verdict

    @property
    def contents(self) -> tuple[Content, ...]:
        """What is to be written."""
        return (self.received,) if isinstance(self.state, int) else (self.received, self.state)

    @property
    def bytes(self) -> int:
        """How much that is."""
        return sum(content.size for content in self.contents)

    def kept_as(self, ids: Mapping[str, int]) -> store.Kept:
        """Say where its bytes are, by the ids of the payloads with these digests."""
        payload_id = ids[self.received.digest]
        if isinstance(self.state, int):
            return store.Kept(payload_id, payload_id, self.state)
        return store.Kept(payload_id, ids[self.state.digest], 0)


@dataclass(frozen=True, slots=True)
class Delivered:
    """An update is there for good: whether it was not before, and whether its round waits for no other.

    `change` is what has to be told; None = there is nothing, or it was told.
    """

    receipt: Receipt
    is_new: bool = False
    closed_round: bool = False
    change: Change | None = None


def keep(database: Database, updates: Sequence[Ready]) -> list[Delivered]:
    """Keep updates of one round, all of them or none.

    The bytes are written first, then, with the round locked, what refers to them.

    Raises:
        KeyRevoked, CredentialInvalid, UploadConflict, RoundClosed: for one of them at least.
    """
    fid, number = updates[0].member.federation_id, updates[0].number
    with database.write() as session:
        ids = store.keep_payloads(session, (content for one in updates for content in one.contents))
        last_event = hold_federation(session, fid)
        for one in updates:
            still_member(session, one.member)
        row = rounds.numbered(session, fid, number, lock=True)
        moment, known = store.receipts(session, row.id, [one.member.client_id for one in updates])
        for one in updates:
            there = known.get(one.member.client_id)
            if there is not None and there.digest != one.received.digest:
                raise UploadConflict(accepted=there.digest)
        new = [one for one in updates if one.member.client_id not in known]
        if not new:
            return [Delivered(known[one.member.client_id]) for one in updates]
        if row.state not in TAKING_PART:
            raise RoundClosed(state=row.state)
        accepted = [
            store.Accepted(
                client_id=one.member.client_id,
                received=one.received,
                kept=one.kept_as(ids),
                verdict=one.verdict,
                layout=one.layout,
                pack=one.pack,
            )
            for one in new
        ]
        receipts = known | store.keep(session, row, accepted, moment)
        is_told = transitions.advance(session, row, moment)
        may_crash("update-written")
        change = None if is_told else Change(fid, number, last_event)
        closed = row.state == "closing"
        return [
            Delivered(receipts[client])
            if client in known
            else Delivered(receipts[client], is_new=True, closed_round=closed, change=change)
            for client in (one.member.client_id for one in updates)
        ]
