"""Encode the body of an update by the plan's recipe, and store what later rounds need of it.

The stored values are written before the body, so that a run killed in between writes the same bytes again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from client_agent.adapters.ranks import rank_of
from client_agent.rounds.byte_budget import marked
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.training_result import TrainingResult
from client_agent.rounds.update_history import confirmed, store_values, stored_residual, stored_values
from client_agent.sketches.gradient import Sketch
from client_agent.storage.round_folder import (
    RECEIPT,
    RESIDUAL,
    SENT,
    SKETCH,
    WEIGHTS,
    RoundFolder,
    RoundFolders,
)
from schemas.maths.adapter import SIGNATURE as SKETCH_TENSOR
from schemas.maths.adapter import Layout, in_order
from schemas.maths.factors import State
from schemas.maths.start import from_start
from schemas.messages.recipes import SentRecipe
from schemas.messages.updates import Receipt, UpdateManifest
from schemas.wire.envelope import Array, pack
from schemas.wire.quantise import NotEncodable
from schemas.wire.streams import CodedStreams, decode, encode

log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class UpdateInputs:
    """Everything that determines a round's update.

    Attributes:
        folder: the round's folder; `rounds` has the earlier ones.
        pack_digest: the alignment pack in use; None without alignment.
        examples: the number of training examples.
        training_epsilon: what private training has cost so far; None = training is not private.
    """

    opened: OpenedBrief
    folder: RoundFolder
    rounds: RoundFolders
    trained: TrainingResult
    federation_id: str
    client_id: str
    pack_digest: str | None
    examples: int
    training_epsilon: float | None = None

    @property
    def layout(self) -> Layout:
        return in_order({name: values.shape for name, values in self.trained.adapter.items()})


@dataclass(frozen=True, slots=True)
class EncodedUpdate:
    """An encoded update.

    Attributes:
        reference: the state that it is the difference to.
        learnt: the difference before anything was added to it.
        delta: the difference that was encoded.
        decoded: the difference as the coordinator decodes it.
        octets: the number of bytes of the encoded values.
    """

    reference: State
    learnt: State
    delta: State
    decoded: State
    octets: int

    @property
    def residual(self) -> float:
        """Return the norm of what was lost, as a share of what was learnt."""
        return _norm(_difference(self.delta, self.decoded)) / (_norm(self.learnt) or 1)


@dataclass(frozen=True, slots=True)
class _Reference:
    """The state that an update is the difference to, and its digest; None for a whole update."""

    values: State | None
    digest: str | None


def pack_update(inputs: UpdateInputs, *, stored_digest: str | None = None) -> bytes:
    """Return the body of a round's update, dense if the recipe cannot be followed.

    Args:
        stored_digest: the reference that the coordinator holds; None = the one of this silo's receipts.
    """
    opened, folder, layout = inputs.opened, inputs.folder, inputs.layout
    recipe, trained = opened.recipe, inputs.trained.adapter
    if recipe.is_dense:
        return pack_dense(inputs)
    reference = _reference(inputs, layout, stored_digest)
    if reference is None:
        return pack_dense(inputs)
    learnt = _difference(trained, reference.values)
    # A round that begins anew has another A: what the last update lost cannot be added to it.
    feeds_back = recipe.feeds_back and not opened.strategy.options.restarts
    delta = _with_residual(inputs, learnt, layout) if feeds_back else learnt
    marks = marked(opened, inputs.trained.private, delta)
    try:
        # The seed follows from the values, so that a repeated encoding is equal to the bit.
        coded = encode(delta, recipe, "recipe", _rounding_seed(delta), keep=marks)
    except NotEncodable as error:
        log.warning(
            "round %d: update not encodable (%s, in %s); sending it whole",
            folder.number,
            error,
            recipe.values,
        )
        return pack_dense(inputs)
    rank = rank_of(trained) if opened.strategy.options.mixed_ranks else None
    body = _body(
        inputs, coded.tensors, SentRecipe(**recipe.model_dump(), against=reference.digest, rank=rank)
    )
    # Not `delta`: the coordinator holds what it decodes, and the next difference is to that.
    decoded = dict(decode(coded, layout, recipe))
    # Stored before the body is written as the step's file: a killed process repeats both with the same bytes.
    if _is_needed_later(opened):
        store_values(
            folder, SENT, _sum(reference.values, decoded), inputs.federation_id, body, inputs.pack_digest
        )
    if feeds_back:
        store_values(
            folder, RESIDUAL, _difference(delta, decoded), inputs.federation_id, body, inputs.pack_digest
        )
    if reference.values is not None:
        encoded = EncodedUpdate(reference.values, learnt, delta, decoded, _bytes(coded))
        for part in opened.parts:
            part.encoded(inputs, encoded)
    return body


def pack_dense(inputs: UpdateInputs) -> bytes:
    """Return the body of a round's update as plain tensors, which every coordinator accepts."""
    wire, trained = inputs.opened.brief.wire, inputs.trained.adapter
    half = wire.recipe.is_dense and wire.recipe.values == "f16"
    tensors = {name: values.astype(np.float16) if half else values for name, values in trained.items()}
    octets = sum(values.nbytes for values in tensors.values())
    # Sent anyway: without it the round would lose this client for a rare failure of the encoding.
    if wire.max_bytes is not None and octets > wire.max_bytes:
        log.warning(
            "round %d: whole update of %d bytes exceeds wire.max_bytes %d; sending it anyway",
            inputs.folder.number,
            octets,
            wire.max_bytes,
        )
    body = _body(inputs, tensors, None)
    if _is_needed_later(inputs.opened):
        decoded = {name: values.astype(np.float32) for name, values in tensors.items()}
        store_values(inputs.folder, SENT, decoded, inputs.federation_id, body, inputs.pack_digest)
    return body


def _is_needed_later(opened: OpenedBrief) -> bool:
    return opened.recipe.reference == "own_last" or opened.brief.wire.own_last_recipe is not None


def _rounding_seed(values: State) -> str:
    """Return a name of values that seeds their stochastic rounding: equal for a repeated encoding."""
    digest = sha256()
    for name in sorted(values):
        digest.update(values[name].astype("<f4", copy=False).tobytes())
    return digest.hexdigest()


def _body(inputs: UpdateInputs, tensors: Mapping[str, Array], recipe: SentRecipe | None) -> bytes:
    sketch = Sketch.from_bytes(inputs.folder.read(SKETCH))
    manifest = UpdateManifest(
        federation=inputs.federation_id,
        recipe=recipe.model_dump(mode="json") if recipe is not None else {},
        round=inputs.folder.number,
        client=inputs.client_id,
        base=inputs.folder.base,
        pack=inputs.pack_digest,
        examples=inputs.examples,
        signature_reliability=sketch.reliability,
        signature_epsilon=sketch.epsilon,
        training_epsilon=inputs.training_epsilon,
    )
    body_tensors: dict[str, Array] = {**tensors, SKETCH_TENSOR: sketch.vector}
    for part in inputs.opened.parts:
        body_tensors |= part.update_tensors(inputs.folder)
    return pack(body_tensors, manifest, compress=inputs.opened.brief.wire.compression == "zstd")


def _reference(inputs: UpdateInputs, layout: Layout, stored_digest: str | None) -> _Reference | None:
    opened, folder, form = inputs.opened, inputs.folder, inputs.opened.strategy.served
    kind, number = opened.recipe.reference, folder.number
    if kind == "none":
        return _Reference(None, None)
    last_counted = (
        confirmed(inputs.rounds, number, stored_digest)
        if kind == "own_last" and not opened.strategy.options.restarts
        else None
    )
    if last_counted is None:
        content = folder.read(WEIGHTS)
        if stored_digest not in (None, form.reference_digest(folder, content)):
            log.warning(
                "round %d: this silo lacks the coordinator's reference; sending a whole update", number
            )
            return None
        weights, seed = form.read(content, layout), opened.start_seed
        # Served zeros stand for the start, which both sides compute from the seed.
        values = {name: from_start(name, weights.__getitem__, seed, layout) for name in layout}
        return _Reference(values, folder.base)
    last, receipt = last_counted
    stored = None
    # A clipped update was changed by the coordinator, and its state is not known here.
    if not receipt.clipped:
        stored = stored_values(last, SENT, receipt.digest, layout, mixed_ranks=form.mixed_ranks)
    if stored is None:
        log.warning(
            "round %d: the coordinator's state of round %d is not known here (%s); sending a whole update",
            number,
            last.number,
            "it was clipped" if receipt.clipped else f"no {SENT}",
        )
        return None
    return _Reference(stored, receipt.digest)


def _with_residual(inputs: UpdateInputs, delta: Arrays, layout: Layout) -> Arrays:
    """Add what the last update lost in encoding (error feedback, Karimireddy et al., arXiv 1901.09847).

    The residual counts only if it is of the previous round, of an update that was counted, and of the pack in
    use. After an abandoned round, training starts again from the same weights or from initial ones, so the
    loss is learnt again. A residual in the frames of another pack means nothing.
    """
    folder = inputs.folder
    last = inputs.rounds.newest_with(RESIDUAL, before=folder.number)
    if last is None:
        return delta
    residual = None
    form = inputs.opened.strategy.served
    # Equal weights mean that the round between was abandoned: the same loss is learnt again.
    is_next = last.number == folder.number - 1 and last.base != folder.base
    if is_next and last.has(RECEIPT) and not form.is_initial(folder.read(WEIGHTS), layout):
        receipt = Receipt.model_validate_json(last.read(RECEIPT))
        residual = stored_residual(
            last, receipt.digest, layout, inputs.pack_digest, mixed_ranks=form.mixed_ranks
        )
    if residual is None:
        log.warning("round %d: residual of round %d dropped; it is out of date", folder.number, last.number)
        return delta
    log.info(
        "round %d: residual of the last update is %.2f of what was learnt",
        folder.number,
        _norm(residual) / (_norm(delta) or 1),
    )
    return _sum(delta, residual)


def _bytes(coded: CodedStreams) -> int:
    return sum(stream.nbytes for stream in coded.tensors.values())


def _sum(left: State | None, right: State) -> Arrays:
    """Add to the bit as the coordinator does."""
    return {name: values if left is None else left[name] + values for name, values in right.items()}


def _difference(left: State, right: State | None) -> Arrays:
    return {name: values if right is None else values - right[name] for name, values in left.items()}


def _norm(values: State) -> float:
    flat = (array.reshape(-1).astype(np.float64) for array in values.values())
    return float(np.sqrt(sum(float(np.einsum("i,i->", row, row)) for row in flat)))
