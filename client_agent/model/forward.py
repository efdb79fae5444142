"""Run a base model, with whatever adapter is in place, up to its hidden states or its answer's logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor

from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET, Batch


def hidden_states(base: BaseModel, batch: Batch) -> Tensor:
    """Run the model up to its final norm, included: (n, t, d); see `FrozenPrefix` for the layers below."""
    decoder = cast(Callable[..., Any], base.model.get_submodule(base.parts.decoder))
    with base.prefix.in_place(base, batch):
        if batch.positions is None:
            output = decoder(input_ids=batch.ids, attention_mask=batch.attention, use_cache=False)
        else:  # texts of a row are told apart by their positions, which a mask would override
            output = decoder(input_ids=batch.ids, position_ids=batch.positions, use_cache=False)
    return cast(Tensor, output.last_hidden_state)


def answer_logits(base: BaseModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Compute the logits (m, V) float32 of the m answer tokens of a batch, row by row, and their ids (m,).

    The head runs at these positions only, without an (n, t, V) tensor.
    """
    is_answer = batch.targets != NO_TARGET  # (n, t)
    hidden = hidden_states(base, batch)[is_answer]  # (m, d)
    return base.parts.logits(base.model, hidden).float(), batch.targets[is_answer]
