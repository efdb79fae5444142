"""Publish a summed round: the strategy changes the joint model by the sum, and all clients are served it.

Nothing here can read an update: the input is the total of the round's sum, and what all clients began with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import prod
from typing import ClassVar

import numpy as np
from sqlalchemy import bindparam, exists, select
from sqlalchemy.orm import Session, aliased

from coordinator.aggregation import joint_model
from coordinator.aggregation.difference import Difference
from coordinator.aggregation.joint_model import (
    JointModel,
    PayloadValues,
    PublishedJointModel,
    TensorPlace,
    Values,
    places_of,
)
from coordinator.aggregation.part import Claim, ClosedRound, NewWeights, OldTensors, Part, StagedWeights
from coordinator.db.engine import Database, run
from coordinator.db.tables.federations import ClientRow, RoundRow
from coordinator.db.tables.secure_sum import JointModelRow, SumSessionRow
from coordinator.http.downloads import StoredBody
from coordinator.observability.fault_points import may_crash
from coordinator.rounds import base_weights
from coordinator.secure_sum.totals import SummedTotal, summed_total
from coordinator.storage.payloads import StagedPayload
from coordinator.storage.staging import Staging
from coordinator.strategies.opening import OpenedPlan, require_summed
from coordinator.totals import Floats, JointValues, SegmentChange
from coordinator.weights.store import SERVED
from schemas.maths.adapter import Layout, is_of_one_base_model, module_of
from schemas.messages.enrolment import Profile
from schemas.messages.recipes import Recipe
from schemas.messages.secure_sum import Segment
from schemas.messages.updates import BankIndex, WeightsManifest
from schemas.secure_sum.counts import groups_of
from schemas.secure_sum.encoding import dequantise
from schemas.secure_sum.segments import SCORES, SUMMED_SCORES, WEIGHT, segments_of
from schemas.wire.digests import digest_from_hash
from schemas.wire.envelope import head
from schemas.wire.quantise import NotEncodable

# Memory per value of a block: total and model as stored and as float64, the result, and its octets.
_BYTES_PER_VALUE = 64

_ENROLLED = (
    select(ClientRow.id, ClientRow.base_model, ClientRow.profile)
    .where(ClientRow.federation_id == bindparam("federation_id"), ClientRow.state == "enrolled")
    .order_by(ClientRow.id)
)
_CLIENT = select(ClientRow.base_model, ClientRow.profile).where(ClientRow.id == bindparam("client"))


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a summed round is published from.

    Attributes:
        payload_id: the payload of the model that all members began with; None = the start.
        packs: the digest of the alignment pack of each client that is served; None = it has none.
        began: the served clients whose last weights are that model.
    """

    total: SummedTotal
    layout: Layout
    payload_id: int | None
    packs: Mapping[str, str | None]
    began: frozenset[str]


class SummedRound(Part):
    """A round whose updates are summed: its sum changes the joint model, which all clients are served."""

    stores_newcomer_weights: ClassVar[bool] = True

    # Of one round, assigned by `new_weights`.
    _layout: Layout
    _values: StagedPayload
    _losses: Mapping[str, float]

    def new_weights(self, closed: ClosedRound) -> NewWeights:
        """Change the joint model by the total of a round, and stage it as the weights of all clients.

        Raises:
            NotSummed: the strategy needs each client's update.
            LookupError: the total or the model was deleted by retention, or the total is of another layout.
        """
        opened, database = closed.opened, closed.database
        strategy = require_summed(opened)
        with database.read() as session:
            inputs = _read(session, closed)
        layout = inputs.layout
        shared = JointModel(database, layout, inputs.payload_id, opened.plan.training.seed)
        model: JointValues = shared
        for part in closed.parts:
            model = part.joint_model(closed, model, layout)
        total = StoredTotal(database, inputs.total)
        revised = {change.segment: change for change in strategy.step(model, total)}
        indices = [part.revise(closed, total, revised, layout) for part in closed.parts]
        bank = next((index for index in indices if index is not None), None)
        # The parts have changed the bank by now: manifests name its new index.
        receivers = _Receivers(layout, _manifests(closed.claim, inputs, bank), inputs.began)
        block_values = max(1, closed.staging.block_bytes // _BYTES_PER_VALUE)

        def values() -> Iterator[Values]:
            return revised_values(layout, model, revised, block_values)

        written = None
        recipe = opened.plan.wire.served_difference
        if recipe is not None:
            written = _write_as_difference(closed.staging, recipe, receivers, values(), shared.tensor)
        # No difference was asked for, or none can be encoded: the model is published dense.
        if written is None:
            written = _write(closed.staging, closed.staging.stage(), receivers, values())
        self._layout, self._values, self._losses = layout, written.staged, total.mean_losses()
        return NewWeights(written.bodies, beside={SERVED: written.differences})

    def store(self, session: Session, row: RoundRow, adopted: Mapping[int, int]) -> None:
        """Store the joint model and the mean losses of the members."""
        values = self._values
        model = PublishedJointModel(self._layout, adopted[values.payload_id], values.digest, self._losses)
        joint_model.store(session, row.federation_id, row.number, model)

    @staticmethod
    def newcomer_weights(
        database: Database, base_model: str, layout: Layout, manifest: WeightsManifest, until: int
    ) -> StoredBody | None:
        """Return the joint model after round `until`; None = there is none yet."""
        return joint_model.newcomer_weights(database, until, layout, manifest)

    @staticmethod
    def old_tensors(federation_id: str, oldest_kept: int) -> Sequence[OldTensors]:
        """Return totals, and joint models but the last one."""
        newer = aliased(JointModelRow)
        superseded = exists().where(
            newer.federation_id == JointModelRow.federation_id,
            newer.round_number > JointModelRow.round_number,
        )
        models = select(JointModelRow).where(
            JointModelRow.federation_id == federation_id,
            JointModelRow.round_number < oldest_kept,
            JointModelRow.payload_id.is_not(None),
            superseded,
        )
        totals = (
            select(SumSessionRow)
            .join(RoundRow, RoundRow.id == SumSessionRow.round_id)
            .where(
                RoundRow.federation_id == federation_id,
                RoundRow.number < oldest_kept,
                SumSessionRow.total_payload_id.is_not(None),
            )
        )
        return OldTensors(models), OldTensors(totals, references=("total_payload_id",))


def revised_values(
    layout: Layout, model: JointValues, revised: Mapping[str, SegmentChange], block_values: int
) -> Iterator[Values]:
    """Yield the new joint model in layout order, in blocks of at most `block_values`.

    Segments that the strategy did not revise stay as they are.

    Raises:
        ValueError: a new value is not finite, or the strategy returned another number of values.
    """
    pieces: list[Values] = []
    room = block_values
    for place in places_of(layout):
        begin = 0
        while begin < place.count:
            count = min(room, place.count - begin)
            pieces.append(_values(place, begin, count, model, revised.get(place.segment)))
            begin, room = begin + count, room - count
            if not room:
                yield np.concatenate(pieces)
                pieces, room = [], block_values
    if pieces:
        yield np.concatenate(pieces)


def _values(
    place: TensorPlace, begin: int, count: int, model: JointValues, revised: SegmentChange | None
) -> Values:
    # Positions in a segment, which tensors of one factor share.
    at = place.begin + begin
    values = model.read(place.segment, at, count) if revised is None else revised.values(at, count)
    new = np.asarray(values, "<f4")
    if new.shape != (count,) or not np.isfinite(new).all():
        raise ValueError(f"segment {place.segment} needs {count} finite values from {at} on")
    return new


def _read(session: Session, closed: ClosedRound) -> _Inputs:
    claim, opened = closed.claim, closed.opened
    total = summed_total(session, claim.round_id)
    base_model, profile = run(session, _CLIENT, {"client": total.counted[0]}).one()
    layout = _layout(session, claim, opened, base_model, profile)
    before = joint_model.latest(session, claim.federation_id, claim.number - 1)
    if before is not None and before.layout != layout:
        raise LookupError("the layout of the members is not that of the joint model")
    whole = layout
    for part in closed.parts:
        whole = part.joint_layout(closed, session, whole)
    # The total names its own segments. Under another layout its values would land in other tensors.
    if list(segments_of(opened.plan, whole, groups_of(total.terms.segments))) != total.terms.segments:
        raise LookupError("the total is not of the layout of its members")
    # LoRA tensors mean something in one base model only: clients of other models cannot be served them.
    same_model = any(is_of_one_base_model(module_of(tensor)) for tensor in layout)
    packs = {}
    for client, client_model, client_profile in run(
        session, _ENROLLED, {"federation_id": claim.federation_id}
    ):
        if same_model and client_model != base_model:
            continue
        if _layout(session, claim, opened, client_model, client_profile) == layout:
            packs[client] = base_weights.pack_digest(session, claim.federation_id, client_model)
    payload_id = before.payload_id if before is not None else None
    began = set()
    for client in packs:
        served = base_weights.newest(session, client, claim.number)
        # Before the first model, all that a client was served are zeros, which stand for the start.
        if served is not None and payload_id in (None, served.payload_id):
            began.add(client)
    return _Inputs(total, layout, payload_id, packs, frozenset(began))


def _layout(
    session: Session, claim: Claim, opened: OpenedPlan, base_model: str, profile: Mapping[str, object]
) -> Layout:
    parsed = Profile.model_validate(profile)
    return base_weights.layout(session, claim.federation_id, opened, base_model, parsed)


def _manifests(claim: Claim, inputs: _Inputs, bank: BankIndex | None) -> dict[str, WeightsManifest]:
    """Return the manifest of each client's weights for the next round."""
    return {
        client: WeightsManifest(
            federation=claim.federation_id,
            recipe={},
            round=claim.number + 1,
            client=client,
            pack=pack,
            bank=bank,
        )
        for client, pack in inputs.packs.items()
    }


@dataclass(frozen=True, slots=True)
class _Receivers:
    """The clients that are served a joint model, by their manifests.

    `began` are those whose last weights are the model before it.
    """

    layout: Layout
    manifests: Mapping[str, WeightsManifest]
    began: frozenset[str]


@dataclass(frozen=True, slots=True)
class _StagedModel:
    """Staged values, and each client's weights: its own head, and these values.

    `differences` are those to the model which all began with, by client.
    """

    staged: StagedPayload
    bodies: dict[str, StagedWeights]
    differences: dict[str, StagedPayload] = field(default_factory=dict)


def _write(
    staging: Staging, staged: StagedPayload, receivers: _Receivers, blocks: Iterable[Values]
) -> _StagedModel:
    """Write a model's values to a staged payload, in blocks in the order of the layout."""
    heads = {client: head(receivers.layout, manifest) for client, manifest in receivers.manifests.items()}
    hashers = {client: sha256(beginning) for client, beginning in heads.items()}
    for values in blocks:
        octets = values.data.cast("B")
        with staging.database.write() as session:
            staged.append(session, octets)
        may_crash("block-staged")
        for hasher in hashers.values():
            hasher.update(octets)
        staging.between()
    bodies = {
        client: StagedWeights(
            beginning,
            staged,
            0,
            digest_from_hash(hashers[client].hexdigest()),
            len(beginning) + staged.size,
        )
        for client, beginning in heads.items()
    }
    return _StagedModel(staged, bodies)


def _write_as_difference(
    staging: Staging,
    recipe: Recipe,
    receivers: _Receivers,
    blocks: Iterator[Values],
    earlier: Callable[[str], Values],
) -> _StagedModel | None:
    """Stage a model's values as clients reconstruct them, and the difference to the model before.

    Clients with different alignment packs get the same streams under manifests of their own. None = there is
    no client, or a value is too far from the one before.
    """
    if not receivers.manifests:
        return None
    difference = Difference(recipe, next(iter(receivers.manifests.values())).round)
    tensors = _tensors(receivers.layout, blocks)
    rounded = difference.rounded(receivers.layout, lambda _: next(tensors), earlier)
    staged = staging.stage()
    try:
        written = _write(staging, staged, receivers, (values.reshape(-1) for values in rounded))
    except NotEncodable:
        staging.discard([staged])
        return None
    differences_by_pack: dict[str | None, StagedPayload] = {}
    for client in sorted(receivers.began):
        manifest = receivers.manifests[client]
        if manifest.pack not in differences_by_pack:
            differences_by_pack[manifest.pack] = difference.stage(staging, manifest)
    differences_by_client = {
        client: differences_by_pack[receivers.manifests[client].pack] for client in sorted(receivers.began)
    }
    return replace(written, differences=differences_by_client)


def _tensors(layout: Layout, blocks: Iterator[Values]) -> Iterator[Values]:
    """Yield the tensors of a layout, in order and shape, from blocks of values."""
    # Blocks and tensors have different lengths: a tensor may need several blocks, or a part of one.
    remaining = np.empty(0, np.float32)
    for shape in layout.values():
        parts, missing = [], prod(shape)
        while missing:
            if not remaining.size:
                remaining = next(blocks)
            parts.append(remaining[:missing])
            remaining = remaining[missing:]
            missing -= parts[-1].size
        yield np.concatenate(parts).reshape(shape)


class StoredTotal:
    """The stored sum of the inputs of `count` members (`coordinator.totals.Total`)."""

    def __init__(self, database: Database, stored: SummedTotal) -> None:
        self._bits = stored.terms.bits
        self._count = len(stored.counted)
        self._segments: dict[str, tuple[Segment, int, PayloadValues]] = {}
        at = 0
        for segment in stored.terms.segments:
            values = PayloadValues(database, stored.payload_id, "<i4", stored.terms.values)
            self._segments[segment.name] = segment, at, values
            at += segment.values

    @property
    def count(self) -> int:
        return self._count

    @property
    def segments(self) -> Collection[str]:
        return self._segments

    def number(self, name: str) -> float:
        """Return a summed scalar; `weight` is `count` if members have uniform weights.

        Raises:
            KeyError: no such number was summed.
            LookupError: the total was deleted by retention.
        """
        # Uniform weights are not summed: each member has weight 1.
        if name == WEIGHT and name not in self._segments:
            return float(self._count)
        segment, _, _ = self._segments[name]
        if segment.values != 1:
            raise KeyError(name)
        return float(self.values(name, 0, 1)[0])

    def values(self, segment: str, begin: int, count: int) -> Floats:
        """Return `count` summed values of a segment from `begin` on, (count,).

        Raises:
            KeyError: no such segment was summed.
            LookupError: it has fewer values, or the total was deleted by retention.
        """
        summed, at, stored = self._segments[segment]
        if begin < 0 or begin + count > summed.values:
            raise LookupError(f"segment {segment} has no values {begin} to {begin + count}")
        return dequantise(stored.read(at + begin, count).astype(np.int64), summed.clip, self._bits)

    def mean_losses(self) -> dict[str, float]:
        """Return the mean loss of the members by model, `served` and `trained`; {} if none were summed."""
        if SCORES not in self._segments:
            return {}
        sums = self.values(SCORES, 0, len(SUMMED_SCORES))
        # Each rounded at random: the mean of losses of 0 may be slightly below it.
        return {
            name: max(0.0, float(value) / self._count)
            for name, value in zip(SUMMED_SCORES, sums, strict=True)
        }
