"""Take one update in: what it must fit, decoding with no transaction open; the `commit` comes last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, cast

from coordinator.auth.authentication import Member
from coordinator.db.engine import Database
from coordinator.db.federation_lock import hold_federation
from coordinator.errors import NotJoined, RoundClosed
from coordinator.http.limits.concurrency import decoder
from coordinator.http.uploads import ReceivedBody
from coordinator.observability.fault_points import may_crash
from coordinator.rounds import base_weights, delta_reference, participations
from coordinator.rounds import store as rounds
from coordinator.rounds.lifecycle import TAKING_PART
from coordinator.storage import payloads
from coordinator.strategies.opening import open_plan
from coordinator.updates import store
from coordinator.updates.commit import Delivered, ValidatedUpdate, keep
from coordinator.updates.decode import DecodedState, Pieces, scale_to, scaled
from coordinator.updates.group_commit import GroupCommit
from coordinator.updates.store import Content
from coordinator.updates.validation import (
    Address,
    UpdateSpec,
    Verdict,
    check_recipe,
    expected_streams,
    expected_tensors,
    is_dense,
    judge,
    sent_layout,
    state,
)
from schemas.maths.adapter import Layout
from schemas.wire.digests import digest_from_hash
from schemas.wire.envelope import Envelope, unpack
from schemas.wire.ranks import any_rank

_SPOOL_BYTES = 4 * 2**20
_SMALL_BYTES = 4 * 2**20  # received and decoded together: what each thread may hold while it waits
_LONG_BYTES = 2 * 2**20  # it travels long enough to ask again how its client stands, before any work on it


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A judged update and its state: a decoded copy, or where it begins in the received bytes."""

    verdict: Verdict
    layout: Layout
    state: Content | int


@dataclass(frozen=True, slots=True)
class ExpectedUpdate:
    """What is known of an update before any of it is read.

    Attributes:
        member: the client that is to send it.
        number: the round's.
        standing: how its client stands in it.
        terms: what it must fit; None = its client does not take part.
    """

    member: Member
    number: int
    standing: store.UpdateContext
    terms: UpdateSpec | None

    @property
    def max_bytes(self) -> int:
        """How many bytes it may have."""
        return self.standing.plan.limits.max_update_bytes


def expect(database: Database, member: Member, round_number: int) -> ExpectedUpdate:
    """Say what a client's update of a round is expected to be.

    Raises:
        NotFound: there is no such round.
    """
    with database.read() as session:
        standing = store.standing(
            session, member.federation_id, round_number, member.client_id, member.base_model
        )
        plan = standing.plan
        if standing.base is None:
            return ExpectedUpdate(member, round_number, standing, None)
        opened = open_plan(plan)
        layout = base_weights.layout(session, member.federation_id, opened, member.base_model, member.profile)
    terms = UpdateSpec(
        address=Address(
            federation=member.federation_id, round=round_number, client=member.client_id, pack=standing.pack
        ),
        base=standing.base,
        layout=layout,
        signature=plan.signature,
        needs_signature=opened.traits.needs_sketch,
        limits=plan.limits,
        recipe=plan.wire.recipe,
        seed=plan.training.seed,
        least_rank=opened.traits.least_rank,
    )
    return ExpectedUpdate(member, round_number, standing, terms)


def deliver(
    database: Database, expected: ExpectedUpdate, body: ReceivedBody, together: GroupCommit
) -> Delivered:
    """Take in an update of which this was expected; what has changed since is found when it is kept.

    Small ones that come at the same time are kept by a `group_commit`, in one transaction.

    Raises:
        Refused, BodyRefused: the subclass says why; nothing of it was kept but that its client was late.
    """
    may_crash("update-received")
    if body.bytes > _LONG_BYTES:
        expected = expect(database, expected.member, expected.number)
    member, known, terms = expected.member, expected.standing.receipt, expected.terms
    if known is not None and known.digest == body.digest:
        return Delivered(known)
    try:
        if known is None and expected.standing.state not in TAKING_PART:
            raise RoundClosed(state=expected.standing.state)
        if terms is None:
            raise NotJoined
        with ExitStack() as slot:
            slot.enter_context(decoder())
            with _decoded(database, body, terms) as decoded:
                may_crash("update-decoded")
                ready = _ready(member, terms, body, decoded)
                if ready.bytes > _SMALL_BYTES:
                    (kept,) = keep(database, [ready])
                else:
                    slot.close()
                    round_of = member.federation_id, expected.number
                    kept = together.done(round_of, ready, partial(keep, database))
        may_crash("update-committed")
        return kept
    except RoundClosed:
        _mark_late(database, member, expected.number)
        raise


@contextmanager
def _decoded(database: Database, body: ReceivedBody, terms: UpdateSpec) -> Iterator[_Decoded]:
    """Decode and judge an update; what was sent as plain float32 in order is not copied."""
    file = cast("BinaryIO", body.file)
    file.seek(0)
    wanted = expected_tensors(terms.layout, needs_signature=terms.needs_signature)
    if terms.least_rank is not None:
        wanted = {**wanted, **any_rank(terms.layout)}
    with unpack(
        file,
        encoding=body.encoding,
        expected=wanted,
        max_bytes=terms.limits.max_update_bytes,
        coded=expected_streams(needs_signature=terms.needs_signature),
    ) as envelope:
        if not is_dense(envelope, terms.layout):
            with _from_streams(database, envelope, terms) as decoded:
                yield decoded
            return
        if terms.least_rank is not None:
            terms = replace(terms, layout=sent_layout(envelope, terms.layout, terms.least_rank))
        verdict = judge(envelope, envelope.norm(terms.layout), terms)
        verdict = _clipped(verdict, terms, state(envelope, terms.layout))
        run = envelope.float32_run(list(terms.layout))
        if body.encoding is None and run is not None and not verdict.clipped:
            yield _Decoded(verdict, terms.layout, run[0])
            return
        with SpooledTemporaryFile[bytes](max_size=_SPOOL_BYTES) as copy:
            pieces = scaled(state(envelope, terms.layout), terms.layout, terms.seed, verdict.scale)
            yield _Decoded(verdict, terms.layout, _copied(pieces, cast("BinaryIO", copy)))


@contextmanager
def _from_streams(database: Database, envelope: Envelope, terms: UpdateSpec) -> Iterator[_Decoded]:
    """Decode and judge an update that is written in the plan's recipe."""
    with database.read() as session:
        whom, kind = terms.address, terms.recipe.reference
        reference = delta_reference.find(session, whom.client, whom.round, kind, terms.layout, terms.seed)
    check_recipe(envelope, terms, reference.digest if reference is not None else None)
    read = delta_reference.reader(database, reference, terms.layout) if reference is not None else None
    with SpooledTemporaryFile[bytes](max_size=_SPOOL_BYTES) as spool:
        made = DecodedState(envelope, terms.layout, terms.recipe, read, cast("BinaryIO", spool))
        verdict = _clipped(judge(envelope, made.norm, terms), terms, made.pieces())
        if not verdict.clipped:
            content = Content(made.digest, made.size, partial(payloads.pieces, cast("BinaryIO", spool)))
            yield _Decoded(verdict, terms.layout, content)
            return
        with SpooledTemporaryFile[bytes](max_size=_SPOOL_BYTES) as copy:
            pieces = scaled(made.pieces(), terms.layout, terms.seed, verdict.scale)
            content = _copied(pieces, cast("BinaryIO", copy))
            yield _Decoded(verdict, terms.layout, content)


def _ready(member: Member, terms: UpdateSpec, body: ReceivedBody, decoded: _Decoded) -> ValidatedUpdate:
    return ValidatedUpdate(
        member=member,
        number=terms.address.round,
        pack=terms.address.pack,
        received=Content(body.digest, body.bytes, partial(payloads.pieces, cast("BinaryIO", body.file))),
        state=decoded.state,
        layout=decoded.layout,
        verdict=decoded.verdict,
    )


def _clipped(verdict: Verdict, terms: UpdateSpec, pieces: Pieces) -> Verdict:
    return replace(verdict, scale=scale_to(terms.limits.clip_norm, pieces, terms.layout, terms.seed))


def _copied(state: Iterator[bytes], copy: BinaryIO) -> Content:
    seen, size = sha256(), 0
    for piece in state:
        seen.update(piece)
        size += copy.write(piece)
    return Content(digest_from_hash(seen.hexdigest()), size, partial(payloads.pieces, copy))


def _mark_late(database: Database, member: Member, round_number: int) -> None:
    """Remember that a client that had joined delivered after the end."""
    with database.write() as session:
        hold_federation(session, member.federation_id)
        row = rounds.numbered(session, member.federation_id, round_number, lock=True)
        part = participations.of(session, row.id, member.client_id)
        if part is not None and part.state == "joined":
            participations.mark(session, row.id, member.client_id, "late")
