"""Publish weights that clients can reconstruct from few bits: their last ones plus an encoded difference.

The published values are those that a client reconstructs: manifests, exports and later rounds refer to them,
whether a client downloads the difference or the dense weights. Clients of equal values share a difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from coordinator.aggregation.difference import Difference
from coordinator.aggregation.output_writer import BATCH_BYTES, Receiver, StagedBody
from coordinator.aggregation.part import ClosedRound, NewWeights, Part, StagedWeights
from coordinator.observability.fault_points import may_crash
from coordinator.rounds import base_weights, delta_reference
from coordinator.rounds.delta_reference import Reference
from coordinator.storage.staging import Staging
from coordinator.weights.store import SERVED
from schemas.maths.adapter import Layout
from schemas.messages.recipes import Recipe
from schemas.messages.updates import WeightsManifest
from schemas.wire.envelope import MANIFEST_KEY
from schemas.wire.header import read_own_head
from schemas.wire.quantise import Floats, NotEncodable


class ServedDifferences(Part):
    """The recipe of a plan by which the weights that clients were served last are changed to the new ones."""

    def finish(self, closed: ClosedRound, new: NewWeights) -> None:
        """Replace new weights by ones that clients reconstruct.

        Weights stay as they are where a client was served none in the same layout and frames before, and
        where a value is too far from the one before.
        """
        plan, before = closed.opened.plan, dict(new.bodies)
        recipe = plan.wire.served_difference
        if recipe is None:
            return
        with closed.database.read() as session:
            groups = _groups(session, before, closed.claim.number, plan.training.seed)
        for group in groups:
            _encode(closed.staging, recipe, group, new)
        # A dense payload stays while a client whose weights were not replaced shares it.
        in_use = {body.staged.payload_id for body in new.bodies.values()}
        closed.staging.discard(
            [body.staged for body in before.values() if body.staged.payload_id not in in_use]
        )


@dataclass(slots=True)
class _Group:
    """Clients with equal new weights, and what each was served before, if that can be a reference.

    `manifest` is that of any of them.
    """

    values: Reference
    manifest: WeightsManifest
    receivers: list[Receiver] = field(default_factory=list)
    earlier: dict[str, Reference] = field(default_factory=dict)


def _groups(
    session: Session, bodies: Mapping[str, StagedWeights], round_number: int, seed: int
) -> list[_Group]:
    groups: dict[tuple[object, ...], _Group] = {}
    for client, body in sorted(bodies.items()):
        layout, metadata = read_own_head(body.head)
        manifest = WeightsManifest.model_validate_json(metadata[MANIFEST_KEY])
        values = Reference(body.digest, body.staged.payload_id, body.begin, layout, None)
        # Manifests that differ in the client only can share one difference.
        shared = manifest.model_copy(update={"client": ""}).model_dump_json()
        group = groups.setdefault((values.payload_id, values.begin, shared), _Group(values, manifest))
        group.receivers.append(Receiver(client, layout, body.head))
        earlier = _earlier_weights(session, client, round_number, layout, manifest, seed)
        if earlier is not None:
            group.earlier[client] = earlier
    return list(groups.values())


def _commonest(references: Collection[Reference]) -> Reference | None:
    """Return the weights that most clients have; None = there are none."""
    places = [(reference.payload_id, reference.begin) for reference in references]
    return max(
        references, key=lambda reference: places.count((reference.payload_id, reference.begin)), default=None
    )


def _earlier_weights(
    session: Session, client: str, round_number: int, layout: Layout, manifest: WeightsManifest, seed: int
) -> Reference | None:
    """Return the weights that a client was served last, if they are in this layout and in these frames."""
    served = base_weights.newest(session, client, round_number)
    if served is None or served.payload_id is None or served.head is None:
        return None
    served_layout, metadata = read_own_head(served.head)
    pack_digest = WeightsManifest.model_validate_json(metadata[MANIFEST_KEY]).pack
    if served_layout != layout or pack_digest != manifest.pack:
        return None
    return Reference(served.digest, served.payload_id, served.begin, layout, seed)


def _encode(staging: Staging, recipe: Recipe, group: _Group, new: NewWeights) -> None:
    """Stage a group's weights and their difference, and put them into `new`.

    A client whose reference is not the commonest one is served the same weights without a difference, and so
    shares the reference of the others from then on.
    """
    earlier = _commonest(group.earlier.values())
    if earlier is None:
        return
    database, layout = staging.database, group.receivers[0].layout
    difference = Difference(recipe, group.manifest.round)
    rounded = difference.rounded(
        layout,
        delta_reference.reader(database, group.values, layout),
        delta_reference.reader(database, earlier, layout),
    )
    (staged,) = staging.stage_all([group.receivers[0].head])
    body = StagedBody(staged, group.receivers)
    try:
        _write(staging, body, rounded)
    except NotEncodable:
        staging.discard([staged])
        return
    coded = difference.stage(staging, group.manifest)
    new.bodies.update(body.outputs())
    differences = new.beside.setdefault(SERVED, {})
    for client, reference in group.earlier.items():
        if (reference.payload_id, reference.begin) == (earlier.payload_id, earlier.begin):
            differences[client] = coded


def _write(staging: Staging, body: StagedBody, tensors: Iterator[Floats]) -> None:
    """Hash and write tensors to a body in few transactions."""
    buffered: list[memoryview] = []

    def flush() -> None:
        with staging.database.write() as session:
            for view in buffered:
                body.write(session, view)
        buffered.clear()
        may_crash("block-staged")

    for tensor in tensors:
        view = tensor.astype("<f4", copy=False).reshape(-1).data.cast("B")
        body.update_digest(view)
        buffered.append(view)
        if sum(map(len, buffered)) >= BATCH_BYTES:
            flush()
        staging.between()
    flush()
