"""Write the body of an update by the plan's recipe, and keep what the next one has to know of it.

What is kept is written before the body, so that who is killed in between writes both again, the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from client_agent.adapters.base import State
from client_agent.adapters.variational.adapter import posterior_of
from client_agent.adapters.variational.measures import Measures, nonzero_share, posterior_measures, with_round
from client_agent.rounds import update_history
from client_agent.rounds.byte_budget import has_no_reference, marked
from client_agent.rounds.checkpoints import read_weights
from client_agent.rounds.participant import Participant
from client_agent.rounds.train import Trained
from client_agent.sketches.gradient import Sketch
from client_agent.storage.round_folder import (
    MEASURES,
    RECEIPT,
    RESIDUAL,
    SENT,
    SIGNATURE,
    TRAINED,
    WEIGHTS,
    RoundFolder,
)
from client_agent.strategies.base import LearnsImportance, load_strategy
from schemas.maths.adapter import SIGNATURE as SIGNATURE_TENSOR
from schemas.maths.adapter import Layout, in_order
from schemas.maths.start import from_start
from schemas.messages.recipes import SentRecipe
from schemas.messages.rounds import RoundBrief
from schemas.messages.updates import Receipt, UpdateManifest
from schemas.wire.digests import digest_of
from schemas.wire.envelope import Array, pack
from schemas.wire.quantise import NotEncodable
from schemas.wire.streams import Coded, decode, encode

log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class _Reference:
    """What an update is the difference to, and its digest; neither, where it is whole."""

    values: State | None
    digest: str | None


def pack_update(
    who: Participant, brief: RoundBrief, folder: RoundFolder, *, held: str | None = None
) -> bytes:
    """Write the body of a round's update, dense where the recipe cannot be followed; the log says why.

    Args:
        held: the digest of what the coordinator says it has; by default what this silo takes for that.
    """
    recipe, strategy = brief.wire.recipe, load_strategy(brief.strategy.name, brief.strategy.options)
    if recipe.is_dense or has_no_reference(strategy, recipe):
        return pack_dense(who, brief, folder)
    made = Trained.read(folder.path / TRAINED)
    trained = made.adapter
    layout = in_order({name: values.shape for name, values in trained.items()})
    reference = _reference(who, brief, folder, layout, held)
    if reference is None:
        return pack_dense(who, brief, folder)
    delta = _difference(trained, reference.values)
    wanted = _with_residual(who, folder, delta, layout) if recipe.feeds_back else delta
    keep = marked(brief, made.private, wanted)
    try:
        coded = encode(wanted, recipe, "recipe", _name_of(wanted), keep=keep)
    except NotEncodable as why:
        log.warning("round %d: %s, in %s: the update is sent whole", brief.round, why, recipe.values)
        return pack_dense(who, brief, folder)
    said = SentRecipe(**recipe.model_dump(), against=reference.digest)
    body = _body(who, brief, folder, coded.tensors, said)
    seen = dict(decode(coded, layout, recipe))
    if _is_needed_later(brief):
        update_history.keep(folder, SENT, _sum(reference.values, seen), who, body)
    if recipe.feeds_back:
        update_history.keep(folder, RESIDUAL, _difference(wanted, seen), who, body)
    if isinstance(strategy, LearnsImportance) and reference.values is not None:
        left = _norm(_difference(wanted, seen)) / (_norm(delta) or 1)
        _measure(who, folder, made.private, reference.values, seen, left, _bytes(coded))
    return body


def pack_dense(who: Participant, brief: RoundBrief, folder: RoundFolder) -> bytes:
    """Write the body of a round's update as plain tensors, which every coordinator takes."""
    trained = Trained.read(folder.path / TRAINED).adapter
    half = brief.wire.recipe.is_dense and brief.wire.recipe.values == "f16"
    tensors = {name: values.astype(np.float16) if half else values for name, values in trained.items()}
    octets, budget = sum(values.nbytes for values in tensors.values()), brief.wire.max_bytes
    if budget is not None and octets > budget:
        log.warning("round %d: sent whole: %d bytes; wire.max_bytes is %d", brief.round, octets, budget)
    body = _body(who, brief, folder, tensors, None)
    if _is_needed_later(brief):
        seen = {name: values.astype(np.float32) for name, values in tensors.items()}
        update_history.keep(folder, SENT, seen, who, body)
    return body


def _is_needed_later(brief: RoundBrief) -> bool:
    """Say whether something is the difference to this update: the next one, or the next weights."""
    wire = brief.wire
    return wire.recipe.reference == "own_last" or wire.asked_for != "dense"


def _name_of(values: State) -> str:
    """Name values, for what is drawn to round them: clients draw apart, who packs again draws alike."""
    seen = sha256()
    for name in sorted(values):
        seen.update(values[name].astype("<f4", copy=False).tobytes())
    return seen.hexdigest()


def _body(
    who: Participant,
    brief: RoundBrief,
    folder: RoundFolder,
    tensors: Mapping[str, Array],
    recipe: SentRecipe | None,
) -> bytes:
    signature = Sketch.from_bytes(folder.read(SIGNATURE))
    manifest = UpdateManifest(
        federation=who.federation,
        recipe=recipe.model_dump(mode="json") if recipe is not None else {},
        round=brief.round,
        client=who.client,
        base=folder.base,
        pack=who.frames(brief).pack_digest,
        examples=len(who.silo.data.train),
        signature_reliability=signature.reliability,
        signature_epsilon=signature.epsilon,
    )
    sent: dict[str, Array] = {**tensors, SIGNATURE_TENSOR: signature.vector}
    return pack(sent, manifest, compress=brief.wire.compression == "zstd")


def _reference(
    who: Participant, brief: RoundBrief, folder: RoundFolder, layout: Layout, held: str | None
) -> _Reference | None:
    """Give what the plan's recipe is the difference to; None where this silo does not hold it any more."""
    kind = brief.wire.recipe.reference
    if kind == "none":
        return _Reference(None, None)
    confirmed = update_history.confirmed(who, brief.round, held) if kind == "own_last" else None
    if confirmed is None:
        content = folder.read(WEIGHTS)
        if held not in (None, digest_of(content)):
            log.warning(
                "round %d: nor does this silo hold what the coordinator does: sent whole", brief.round
            )
            return None
        weights = read_weights(content, layout)
        seed = brief.training.seed
        values = {name: from_start(name, weights.__getitem__, seed, layout) for name in layout}
        return _Reference(values, folder.base)
    last, receipt = confirmed
    sent = update_history.kept(last, SENT, receipt.digest, layout) if not receipt.clipped else None
    if sent is None:
        log.warning(
            "round %d: the coordinator has another update of round %d than this silo (%s): sent whole",
            *(brief.round, last.number, "it was clipped" if receipt.clipped else f"no {SENT} of it here"),
        )
        return None
    return _Reference(sent, receipt.digest)


def _with_residual(who: Participant, folder: RoundFolder, delta: Arrays, layout: Layout) -> Arrays:
    """Add what the update of the round directly before lost, if it was counted (error feedback).

    Karimireddy et al., arXiv 1901.09847. What an older or a refused update lost is out of date; and a round
    that came to nothing is followed by the same weights, from which all of it is learnt again.
    """
    round_number = folder.number
    last = who.rounds.newest_with(RESIDUAL, before=round_number)
    if last is None:
        return delta
    lost = None
    if last.number == round_number - 1 and last.has(RECEIPT) and last.base != folder.base:
        receipt = Receipt.model_validate_json(last.read(RECEIPT))
        lost = update_history.kept(last, RESIDUAL, receipt.digest, layout)
    if lost is None:
        log.warning(
            "round %d: what the update of round %d lost is not made up for", round_number, last.number
        )
        return delta
    log.info(
        "round %d: what was lost last is %.2f of what was learnt",
        round_number,
        _norm(lost) / (_norm(delta) or 1),
    )
    return _sum(delta, lost)


def _measure(
    who: Participant,
    folder: RoundFolder,
    private: State,
    served: State,
    seen: Arrays,
    left: float,
    octets: int,
) -> None:
    found = posterior_measures(posterior_of(private), served)
    made = Measures(
        round=folder.number,
        density=nonzero_share(seen),
        residual=left,
        kl=found.kl,
        importance=found.importance,
        bytes=octets,
    )
    log.info(
        "round %d: density %.3f, residual %.2f of what was learnt, KL %.4f, importance %.3f to %.3f",
        *(made.round, made.density, made.residual, made.kl, made.importance[0], made.importance[2]),
    )
    last = who.rounds.newest_with(MEASURES, before=folder.number)
    before = last.read(MEASURES) if last is not None else None
    folder.write(MEASURES, with_round(before, made, found.modules))


def _bytes(coded: Coded) -> int:
    return sum(stream.nbytes for stream in coded.tensors.values())


def _sum(one: State | None, other: State) -> Arrays:
    """Add as the coordinator does: to the bit."""
    return {name: values if one is None else one[name] + values for name, values in other.items()}


def _difference(one: State, other: State | None) -> Arrays:
    return {name: values if other is None else values - other[name] for name, values in one.items()}


def _norm(values: State) -> float:
    flat = (array.reshape(-1).astype(np.float64) for array in values.values())
    return float(np.sqrt(sum(float(np.einsum("i,i->", one, one)) for one in flat)))
