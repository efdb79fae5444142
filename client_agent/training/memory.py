"""Find out how much memory a base model holds and a training step would need. Trains nothing.

What a backward pass needs is not computed from the architecture but seen: one forward pass over a few texts
notes every tensor that autograd keeps for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.adapters.base import Adapter
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET, Batch, hidden_states

_GRADIENTS_OF_LOGITS = 2  # at the log-probabilities and, made from it, at the logits
_PASSING_BACK = 2
_GRADIENT_AND_MOMENTS = 3


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Bytes per token, padding included, that a step of a model of `depth` layers keeps for its pass back.

    The pass back begins at the head, with everything else still kept: there its own tensors count too.
    `trained` are the bytes, whatever the tokens, of gradients and of Adam's two moments.
    """

    layers: float
    own: float  # of these, what 8-bit layers keep by themselves, recomputed or not
    head: float
    hidden: float  # one layer's input
    depth: int
    trained: int

    def step(self, tokens: int) -> int:
        """Give the bytes for so many tokens at once."""
        return round(tokens * (self.layers + self.head)) + self.trained

    def recomputing_step(self, tokens: int) -> int:
        """Give the bytes with gradient checkpointing: every layer's input, and the head or one layer in full.

        While a recomputed layer is passed back through, it needs as much again as it keeps at most: with
        ordinary LoRA in every layer, which keeps more and needs less again, .6 of this was seen.
        """
        in_turn = max(self.head, _PASSING_BACK * self.layers / self.depth)
        return round(tokens * (self.depth * self.hidden + self.own + in_turn)) + self.trained


def held_bytes(base: BaseModel) -> int:
    """Count the bytes of parameters and buffers; of 4 bits, without their scales, which add 3 %."""
    return int(cast(Any, base.model).get_memory_footprint())


def step_memory(base: BaseModel, adapter: Adapter, batch: Batch) -> StepMemory:
    """See what a pass back through the model, its injected adapter and the loss of this batch would need.

    With adapters in the last layers only, the layers below the first of them need nothing.
    """
    model = cast(Any, base.model)
    frozen = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    model.enable_input_require_grads()
    try:
        with torch.enable_grad(), _kept(model, frozen) as (kept, own):
            hidden = hidden_states(base.model, base.parts, batch)  # (n, t, d)
            layers = sum((kept | own).values())
            wanted = batch.targets != NO_TARGET
            logits = base.parts.logits(base.model, hidden[wanted]).float()  # (m, V)
            loss = nnf.cross_entropy(logits, batch.targets[wanted], reduction="sum")
            head = sum((kept | own).values()) - layers + _GRADIENTS_OF_LOGITS * logits.nbytes
            del loss  # not before: with it goes the graph
    finally:
        model.disable_input_require_grads()
    tokens = batch.ids.numel()
    return StepMemory(
        layers=layers / tokens,
        own=sum(own.values()) / tokens,
        head=head / tokens,
        hidden=hidden.shape[-1] * hidden.element_size(),
        depth=base.layers,
        trained=_GRADIENT_AND_MOMENTS * sum(p.nbytes for p in adapter.named_parameters().values()),
    )


@contextmanager
def _kept(model: nn.Module, frozen: set[int]) -> Iterator[tuple[dict[int, int], dict[int, int]]]:
    """Note the storages (address: bytes) that autograd keeps, less `frozen` ones, and that layers keep."""
    by_autograd: dict[int, int] = {}
    by_layers: dict[int, int] = {}
    alive: list[Tensor] = []  # so that no address is used twice

    def note(tensor: Tensor, where: dict[int, int]) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in frozen:
            where[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    def note_input(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        note(arguments[0], by_layers)

    eight_bit = [module for module in model.modules() if hasattr(module, "init_8bit_state")]
    hooks = [module.register_forward_pre_hook(note_input) for module in eight_bit]
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: note(x, by_autograd), lambda x: x):
            yield by_autograd, by_layers
    finally:
        for hook in hooks:
            hook.remove()
