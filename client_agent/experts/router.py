"""Weights of specialists by token, from the base model's last hidden state. Private to a client.

The hidden state is that of a pass without any adapter, so that weights do not depend on the experts'
revisions, fit layers of any width, and are those of X-LoRA (arXiv 2402.07148).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from math import log
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.adapters.expert_bank import ExpertBank
from client_agent.errors import AdapterInPlace
from client_agent.model.forward import evaluating
from client_agent.model.loading import BaseModel

_SMALLEST = 1e-12


class TokenRouter:
    """A row U (d,) and an offset c () per specialist, float32; both are zero when an expert is born."""

    def __init__(self, width: int, specialists: Sequence[int], device: torch.device) -> None:
        self.rows = {expert: nn.Parameter(torch.zeros(width, device=device)) for expert in specialists}
        self.offsets = {expert: nn.Parameter(torch.zeros((), device=device)) for expert in specialists}

    def parameters(self, specialists: Sequence[int]) -> dict[str, nn.Parameter]:
        """Return the parameters of specialists: `router.x3.u` (d,), `router.x3.c` ()."""
        rows = {f"router.x{expert}.u": self.rows[expert] for expert in specialists}
        return rows | {f"router.x{expert}.c": self.offsets[expert] for expert in specialists}

    def weights(self, hidden: Tensor, responsibilities: Mapping[int, float], gamma: float) -> Tensor:
        """Compute alpha = softmax over specialists of (ln r_k + u_k / gamma), u = U h + c.

        Args:
            hidden: (..., d).
            responsibilities: r_k of the specialists to weigh, in the order of the result, (..., e) float32.
        """
        u = torch.stack([self.rows[expert] for expert in responsibilities])  # (e, d)
        c = torch.stack([self.offsets[expert] for expert in responsibilities])  # (e,)
        # A responsibility can underflow to 0, and its logarithm would mask the specialist for ever.
        prior = u.new_tensor([log(max(r, _SMALLEST)) for r in responsibilities.values()])  # (e,)
        # Differences of small logits vanish in bfloat16.
        with torch.autocast(hidden.device.type, enabled=False):
            return (prior + nnf.linear(hidden.float(), u, c) / gamma).softmax(dim=-1)


def consistency(weights: Tensor, responsibilities: Mapping[int, float]) -> Tensor:
    """Compute KL(mean alpha || r / sum r) of the tokens' weights (m, e): () float32, differentiable.

    It is taken of the mean over all tokens, once per batch and not once per layer.
    """
    prior = weights.new_tensor([max(r, _SMALLEST) for r in responsibilities.values()])
    mean = weights.mean(dim=0).clamp_min(_SMALLEST)
    return (mean * (mean.log() - (prior / prior.sum()).log())).sum()


class RoutedPasses:
    """Runs the base model before every pass of a routed one, and weighs the bank's specialists by token.

    Attributes:
        responsibilities: r_k of the selected specialists; empty = the bank's weights stay as they are.
    """

    def __init__(
        self, base: BaseModel, bank: ExpertBank, router: TokenRouter, gamma: float, *, keeps_hidden: bool
    ) -> None:
        self._bank = bank
        self._router = router
        self._gamma = gamma
        self.responsibilities: dict[int, float] = {}
        self._keeps_hidden = keeps_hidden
        self._read: list[Tensor] = []
        self._inside = False
        self._cache: tuple[object, Any] | None = None
        # A hook before the decoder, because every way into the model (loss, generation, scoring) runs through
        # it.
        decoder = base.model.get_submodule(base.parts.decoder)
        self._hook = decoder.register_forward_pre_hook(self._before, with_kwargs=True)

    def remove(self) -> None:
        self._hook.remove()

    def read_hidden(self) -> Tensor:
        """Return the hidden states (m, d) of the tokens of all training passes since the last call."""
        read, self._read = self._read, []
        return torch.cat(read)

    def _before(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # `_base_pass` calls the decoder, and comes here again.
        if self._inside or not self.responsibilities:
            return
        # Passes of scoring and generation are not counted in the consistency term.
        is_step = self._keeps_hidden and decoder.training and torch.is_grad_enabled()
        hidden = self._base_pass(decoder, args, kwargs)
        self._bank.weigh(self._router.weights(hidden, self.responsibilities, self._gamma))
        if is_step:
            mask = kwargs.get("attention_mask")
            is_token = mask.bool() if mask is not None else torch.ones_like(hidden[..., 0], dtype=torch.bool)
            self._read.append(hidden[is_token])

    @torch.no_grad()
    def _base_pass(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Compute the last hidden state (n, t, d) without adapter and dropout."""
        without_cache = {**kwargs, **self._second_cache(kwargs)}
        selected = self._bank.mixture.experts
        self._bank.mixture.experts, self._inside = (), True
        try:
            # Without dropout, so that a token's weights do not depend on chance.
            with evaluating(decoder):
                return cast(Tensor, decoder(*args, **without_cache).last_hidden_state)
        finally:
            self._bank.mixture.experts, self._inside = selected, False

    def _second_cache(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the base model's own cache, which grows beside the generation's.

        Raises:
            AdapterInPlace: the generation's cache was filled before the router was in place.
        """
        cache = kwargs.get("past_key_values")
        if cache is None:
            return {"use_cache": False}
        # An empty cache begins a new generation.
        if not cache.get_seq_length():
            self._cache = cache, copy.deepcopy(cache)
        if self._cache is None or self._cache[0] is not cache:
            raise AdapterInPlace(
                "a routed adapter cannot continue from this cache; begin the generation with an empty one"
            )
        return {"past_key_values": self._cache[1]}
