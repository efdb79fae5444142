"""Measure the memory of a base model and of a training step: one forward pass records the saved tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.adapters.base import Adapter, lowest_adapted_layer
from client_agent.model.forward import hidden_states
from client_agent.model.loading import BaseModel
from client_agent.model.role_names import is_routed
from client_agent.model.tokens import NO_TARGET, Batch

_GRADIENTS_OF_LOGITS = 2  # with respect to the log-probabilities and to the logits
_BACKWARD_FACTOR = 2
_GRADIENT_AND_MOMENTS = 3


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Bytes per token, padding included, that a step saves for the backward pass through `depth` layers.

    The backward pass begins at the head while all other tensors are still saved, so the head's gradients
    count as well. `trained` is the size of gradients and of Adam's two moments, independent of tokens.
    """

    layers: float
    eight_bit: float  # part of `layers` that 8-bit layers save in any case, recomputed or not
    head: float
    hidden: float  # one layer's input
    depth: int
    trained: int

    def step(self, tokens: int) -> int:
        return round(tokens * (self.layers + self.head)) + self.trained

    def recomputing_step(self, tokens: int) -> int:
        """Return the bytes with gradient checkpointing: every layer's input, plus the head or one layer.

        The backward pass of a recomputed layer needs at most as much again as the layer saves. Ordinary LoRA
        in every layer saves more and needs less again; .6 of this bound was measured.
        """
        in_turn = max(self.head, _BACKWARD_FACTOR * self.layers / self.depth)
        return round(tokens * (self.depth * self.hidden + self.eight_bit + in_turn)) + self.trained


def held_bytes(base: BaseModel) -> int:
    """Return the bytes of parameters and buffers; for 4 bits, without their scales, which add 3 %."""
    return int(cast(Any, base.model).get_memory_footprint())


def unquantised_expert_bytes(base: BaseModel) -> int:
    """Return the bytes of routed experts that are no linear layers, which is why nothing quantises them."""
    layers = base.model.get_submodule(base.parts.layers)
    return sum(p.nbytes for name, p in layers.named_parameters() if is_routed(name) and p.is_floating_point())


def step_memory(base: BaseModel, adapter: Adapter, batch: Batch) -> StepMemory:
    """Measure the memory that a backward pass through model, adapter and loss of this batch would need.

    Layers below the first adapter save nothing. The model is in training mode, as dropout saves its masks.
    """
    model = cast(Any, base.model)
    # Weights that autograd saves are in memory anyway.
    frozen = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    model.train()
    try:
        with torch.enable_grad(), _saved_tensors(model, frozen) as (saved, eight_bit):
            hidden = hidden_states(base, batch)  # (n, t, d)
            layers = sum((saved | eight_bit).values())
            is_answer = batch.targets != NO_TARGET
            logits = base.parts.logits(base.model, hidden[is_answer]).float()  # (m, V)
            loss = nnf.cross_entropy(logits, batch.targets[is_answer], reduction="sum")
            head = sum((saved | eight_bit).values()) - layers + _GRADIENTS_OF_LOGITS * logits.nbytes
            del loss  # frees the graph, so not earlier
    finally:
        model.eval()
    tokens = batch.ids.numel()
    return StepMemory(
        layers=layers / tokens,
        eight_bit=sum(eight_bit.values()) / tokens,
        head=head / tokens,
        hidden=hidden.shape[-1] * hidden.element_size(),
        depth=base.layers - lowest_adapted_layer(base),
        trained=_GRADIENT_AND_MOMENTS * sum(p.nbytes for p in adapter.named_parameters().values()),
    )


@contextmanager
def _saved_tensors(model: nn.Module, frozen: set[int]) -> Iterator[tuple[dict[int, int], dict[int, int]]]:
    """Record the storages (address: bytes) saved by autograd, without `frozen`, and by 8-bit layers."""
    by_autograd: dict[int, int] = {}
    by_layers: dict[int, int] = {}
    alive: list[Tensor] = []  # no address may be reused

    def note(tensor: Tensor, storages: dict[int, int]) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in frozen:
            # By storage, since views of one tensor are saved several times and need its memory once.
            storages[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    def note_input(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if arguments[0].requires_grad:
            note(arguments[0], by_layers)

    # These keep their inputs outside of autograd, where hooks do not see them.
    eight_bit_layers = [module for module in model.modules() if hasattr(module, "init_8bit_state")]
    hooks = [module.register_forward_pre_hook(note_input) for module in eight_bit_layers]
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: note(x, by_autograd), lambda x: x):
            yield by_autograd, by_layers
    finally:
        for hook in hooks:
            hook.remove()
