"""Ingest one update: load its context, decode and validate it outside any transaction, then commit it."""

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
from coordinator.db.group_commit import GroupCommit
from coordinator.errors import NotJoined, RoundClosed
from coordinator.http.limits.concurrency import codec_slot
from coordinator.http.uploads import ReceivedBody
from coordinator.observability.fault_points import may_crash
from coordinator.rounds import base_weights, delta_reference, participations
from coordinator.rounds import store as rounds
from coordinator.rounds.lifecycle import ACCEPTING
from coordinator.storage import payloads
from coordinator.strategies.opening import open_plan
from coordinator.updates import store
from coordinator.updates.commit import CommitResult, ValidatedUpdate, commit_updates
from coordinator.updates.decode import DecodedState, Pieces, clip_scale, scaled
from coordinator.updates.store import Content
from coordinator.updates.validation import (
    Address,
    UpdateSpec,
    ValidationResult,
    check_recipe,
    check_reference,
    coded_layout,
    expected_streams,
    expected_tensors,
    is_dense,
    sent_layout,
    state_pieces,
    validate_update,
)
from schemas.maths.adapter import Layout
from schemas.maths.start import restart_seed
from schemas.wire.digests import digest_from_hash
from schemas.wire.envelope import Envelope, any_rank, unpack

_SPOOL_BYTES = 4 * 2**20
# Received plus decoded: a larger one is worth a transaction. Most of it is in temporary files while it waits.
_SHARING_BYTES = 16 * 2**20
_LONG_BYTES = 2 * 2**20  # the upload takes so long that the context may have changed; load it again


@dataclass(frozen=True, slots=True)
class _DecodedUpdate:
    """A validated update and its state: a decoded copy, or its offset in the received bytes."""

    result: ValidationResult
    layout: Layout
    state: Content | int


@dataclass(frozen=True, slots=True)
class ExpectedUpdate:
    """The facts of an update before its body is read.

    Attributes:
        spec: the checks to apply; None = the client has not joined the round.
    """

    member: Member
    round_number: int
    context: store.UpdateContext
    spec: UpdateSpec | None

    @property
    def max_bytes(self) -> int:
        return self.context.plan.limits.max_update_bytes


def load_expected(database: Database, member: Member, round_number: int) -> ExpectedUpdate:
    """Load the context of a client's update in a round, and the spec that follows from its plan.

    Raises:
        NotFound: the round does not exist.
    """
    with database.read() as session:
        context = store.load_context(
            session, member.federation_id, round_number, member.client_id, member.base_model
        )
        plan = context.plan
        if context.base is None:
            return ExpectedUpdate(member, round_number, context, None)
        opened = open_plan(plan)
        layout = base_weights.layout(session, member.federation_id, opened, member.base_model, member.profile)
    seed = plan.training.seed
    spec = UpdateSpec(
        address=Address(
            federation=member.federation_id, round=round_number, client=member.client_id, pack=context.pack
        ),
        base=context.base,
        layout=layout,
        sketch=plan.signature,
        needs_sketch=opened.traits.needs_sketch,
        limits=plan.limits,
        recipe=plan.wire.recipe,
        seed=restart_seed(seed, round_number) if opened.options.restarts else seed,
        restarts=opened.options.restarts,
        least_rank=opened.options.least_rank,
        distils=opened.options.distilled_texts is not None,
        private=plan.privacy.training is not None,
    )
    return ExpectedUpdate(member, round_number, context, spec)


def ingest_update(
    database: Database, expected: ExpectedUpdate, body: ReceivedBody, group_commit: GroupCommit
) -> CommitResult:
    """Decode, validate and commit a received update; the commit checks again what may have changed.

    Updates of up to 16 MiB that are ready at the same time share one transaction.

    Raises:
        Refusal, BodyRefused: the subclass names the reason; nothing is stored, except that a joined client
            whose update came after the round's end is marked late.
    """
    may_crash("update-received")
    if body.bytes > _LONG_BYTES:
        expected = load_expected(database, expected.member, expected.round_number)
    member, receipt, spec = expected.member, expected.context.receipt, expected.spec
    if receipt is not None and receipt.digest == body.digest:
        return CommitResult(receipt)
    try:
        if receipt is None and expected.context.state not in ACCEPTING:
            raise RoundClosed(state=expected.context.state)
        if spec is None:
            raise NotJoined
        with ExitStack() as slot:
            slot.enter_context(codec_slot())
            with _decoded(database, body, spec) as decoded:
                may_crash("update-decoded")
                update = _validated(member, spec, body, decoded)
                if update.bytes > _SHARING_BYTES:
                    (result,) = commit_updates(database, [update])
                else:
                    # Other updates may be decoded while this one waits for its batch.
                    slot.close()
                    key = member.federation_id, expected.round_number
                    commit = partial(commit_updates, database)
                    result = group_commit.run(key, update, commit, size=update.bytes)
        may_crash("update-committed")
        return result
    except RoundClosed:
        _mark_late(database, member, expected.round_number)
        raise


@contextmanager
def _decoded(database: Database, body: ReceivedBody, spec: UpdateSpec) -> Iterator[_DecodedUpdate]:
    """Decode and validate an update; a state that came as plain float32 in order is not copied."""
    file = cast("BinaryIO", body.file)
    file.seek(0)
    expected = expected_tensors(spec.layout, needs_sketch=spec.needs_sketch, distils=spec.distils)
    if spec.least_rank is not None:
        expected = {**expected, **any_rank(spec.layout)}
    with unpack(
        file,
        encoding=body.encoding,
        expected=expected,
        max_bytes=spec.limits.max_update_bytes,
        coded=expected_streams(needs_sketch=spec.needs_sketch, distils=spec.distils),
    ) as envelope:
        if not is_dense(envelope, spec.layout):
            with _decoded_streams(database, envelope, spec) as decoded:
                yield decoded
            return
        if spec.least_rank is not None:
            spec = replace(spec, layout=sent_layout(envelope, spec.layout, spec.least_rank))
        result = validate_update(envelope, envelope.norm(spec.layout), spec)
        result = _clipped(result, spec, state_pieces(envelope, spec.layout))
        run = envelope.float32_run(list(spec.layout))
        # The received bytes contain the state as it is stored, so that it is not copied.
        if body.encoding is None and run is not None and not result.clipped:
            yield _DecodedUpdate(result, spec.layout, run[0])
            return
        with SpooledTemporaryFile[bytes](max_size=_SPOOL_BYTES) as copy:
            pieces = scaled(state_pieces(envelope, spec.layout), spec.layout, spec.seed, result.scale)
            yield _DecodedUpdate(result, spec.layout, _copied(pieces, cast("BinaryIO", copy)))


@contextmanager
def _decoded_streams(database: Database, envelope: Envelope, spec: UpdateSpec) -> Iterator[_DecodedUpdate]:
    address, recipe, mixed = spec.address, check_recipe(envelope, spec), spec.least_rank is not None
    if spec.least_rank is not None:
        spec = replace(spec, layout=coded_layout(recipe, spec.layout, spec.least_rank))
    with database.read() as session:
        reference = delta_reference.find(
            session,
            address.client,
            address.round,
            spec.reference,
            spec.layout,
            spec.seed,
            mixed_ranks=mixed,
        )
    check_reference(recipe, spec, reference.digest if reference is not None else None)
    read = delta_reference.reader(database, reference, spec.layout) if reference is not None else None
    with SpooledTemporaryFile[bytes](max_size=_SPOOL_BYTES) as spool:
        state = DecodedState(envelope, spec.layout, spec.recipe, read, cast("BinaryIO", spool))
        result = validate_update(envelope, state.norm, spec)
        result = _clipped(result, spec, state.pieces())
        if not result.clipped:
            content = Content(state.digest, state.size, partial(payloads.pieces, cast("BinaryIO", spool)))
            yield _DecodedUpdate(result, spec.layout, content)
            return
        with SpooledTemporaryFile[bytes](max_size=_SPOOL_BYTES) as copy:
            pieces = scaled(state.pieces(), spec.layout, spec.seed, result.scale)
            content = _copied(pieces, cast("BinaryIO", copy))
            yield _DecodedUpdate(result, spec.layout, content)


def _validated(
    member: Member, spec: UpdateSpec, body: ReceivedBody, decoded: _DecodedUpdate
) -> ValidatedUpdate:
    return ValidatedUpdate(
        member=member,
        round_number=spec.address.round,
        pack=spec.address.pack,
        received=Content(body.digest, body.bytes, partial(payloads.pieces, cast("BinaryIO", body.file))),
        state=decoded.state,
        layout=decoded.layout,
        result=decoded.result,
    )


def _clipped(result: ValidationResult, spec: UpdateSpec, pieces: Pieces) -> ValidationResult:
    return replace(result, scale=clip_scale(spec.limits.clip_norm, pieces, spec.layout, spec.seed))


def _copied(state: Iterator[bytes], copy: BinaryIO) -> Content:
    digest, size = sha256(), 0
    for piece in state:
        digest.update(piece)
        size += copy.write(piece)
    return Content(digest_from_hash(digest.hexdigest()), size, partial(payloads.pieces, copy))


def _mark_late(database: Database, member: Member, round_number: int) -> None:
    """Mark a joined client whose update came after the round stopped accepting updates."""
    with database.write() as session:
        hold_federation(session, member.federation_id)
        row = rounds.get_round(session, member.federation_id, round_number, lock=True)
        participation = participations.get(session, row.id, member.client_id)
        if participation is not None and participation.state == "joined":
            participations.set_state(session, row.id, member.client_id, "late")
