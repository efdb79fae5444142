"""Importance in a round: select the values to send, and store measures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from client_agent.adapters.base import State
from client_agent.adapters.variational.adapter import posterior_of
from client_agent.adapters.variational.measures import Measures, nonzero_share, posterior_measures, with_round
from client_agent.adapters.variational.posterior import importance
from client_agent.adapters.variational.sparsity import density_at, unit_marks
from client_agent.rounds.encode_update import EncodedUpdate
from client_agent.storage.round_folder import MEASURES, RoundFolder, RoundFolders
from schemas.maths.adapter import lora_modules
from schemas.strategies.ca_pfl import CaPflOptions
from schemas.wire.budget import Marks
from schemas.wire.quantise import Floats

log = logging.getLogger(__name__)


def marks_by_importance(
    plan: CaPflOptions, round_number: int, private: State, delta: Mapping[str, Floats]
) -> tuple[Callable[[float], Marks], float]:
    """Return the selection of an update's values at a density, and the density of a round."""
    learnt = importance(posterior_of(private)).double().numpy()
    marks_at = unit_marks(delta, lora_modules(delta), learnt, span=plan.span)
    return marks_at, density_at(plan, round_number)


def store_measures(folder: RoundFolder, rounds: RoundFolders, private: State, encoded: EncodedUpdate) -> None:
    """Store the measures of an update; `private` are the private tensors after training."""
    posterior = posterior_measures(posterior_of(private), encoded.reference)
    measures = Measures(
        round=folder.number,
        density=nonzero_share(encoded.decoded),
        residual=encoded.residual,
        kl=posterior.kl,
        importance=posterior.importance,
        bytes=encoded.octets,
    )
    log.info(
        "round %d: density %.3f, residual %.2f of what was learnt, KL %.4f, importance %.3f to %.3f",
        measures.round,
        measures.density,
        measures.residual,
        measures.kl,
        measures.importance[0],
        measures.importance[2],
    )
    last = rounds.newest_with(MEASURES, before=folder.number)
    earlier = last.read(MEASURES) if last is not None else None
    folder.write(MEASURES, with_round(earlier, measures, posterior.modules))
