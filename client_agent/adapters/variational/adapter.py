"""An ordinary LoRA with a posterior over the importance of its ranks, a shared prior and a modulator.

The prior is sent less `START`, since every client starts at zeros. A tenth of the prior that a client sends
is its posterior; the modulator is never sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_agent.adapters.base import (
    Adapter,
    LoraFactors,
    Penalty,
    Removable,
    State,
    copy_in,
    copy_out,
    require_fit,
)
from client_agent.adapters.proximal import proximal_term
from client_agent.adapters.variational.modulator import Modulator, fourier, frequencies, mean_feature, pooled
from client_agent.adapters.variational.posterior import (
    START,
    Posterior,
    column_norms,
    gamma_kl,
    positive,
    size_term,
    size_weight,
)
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.strategies.base import AgentStrategy
from schemas.maths.adapter import Layout, in_order, lora_modules, prior_layout, prior_name
from schemas.messages.importance import ImportancePlan

_POSTERIOR_WEIGHT = 0.1
"""Weight of the client's posterior in the prior that it sends."""

_PRIOR_RANGE = (0.1, 50.0)
_POSTERIOR = "posterior.u"

Arrays = dict[str, NDArray[np.float32]]


class VariationalAdapter(Removable):
    """A LoRA with a posterior over the importance of its ranks, in the module order of `lora_modules`."""

    def __init__(self, lora: Adapter, base: BaseModel, plan: ImportancePlan, *, seed: int) -> None:
        self._lora = lora
        self._base = base
        self._plan = plan
        self._modules = lora_modules(lora.layout)
        priors = prior_layout(lora.layout)
        rank = lora.layout[f"{self._modules[0]}.A"][0]
        self.layout: Layout = in_order({**lora.layout, **priors})
        self._prior = torch.full((2, len(self._modules), rank), START, device=base.device)
        self._posterior = Posterior(len(self._modules), rank).to(base.device)
        self._variational: dict[str, nn.Parameter] = {_POSTERIOR: self._posterior.u}
        self._modulator: Modulator | None = None
        if plan.modulator:
            self._modulator = Modulator(plan.fourier_features, len(self._modules), rank, seed=seed)
            self._modulator.to(base.device)
            self._frequencies = frequencies(2 * base.layers, plan.fourier_features, seed).to(base.device)
            self._variational |= {
                f"modulator.{name}": tensor for name, tensor in self._modulator.named_parameters()
            }
        self._start: dict[str, Tensor] = {}

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return {**self._lora.named_parameters(), **self._variational}

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return LoRA's groups, and the variational parameters at their own rate without weight decay."""
        variational = {
            "params": list(self._variational.values()),
            "lr": self._plan.variational_rate,
            "weight_decay": 0.0,
        }
        return [*self._lora.parameter_groups(learning_rate), variational]

    def state(self) -> Arrays:
        """Copy A, B and the prior of every module: shapes and rates less `START`, (2, r)."""
        offset = np.array((self._prior - START).cpu().numpy(), np.float32)
        priors = {prior_name(module): offset[:, row].copy() for row, module in enumerate(self._modules)}
        return dict(sorted({**self._lora.state(), **priors}.items()))

    def load(self, state: State) -> None:
        """Set A, B and the prior; restart the posterior at the prior and the proximal term at A, B."""
        require_fit(self.layout, state)
        priors = np.stack([state[prior_name(module)] for module in self._modules], 1)  # (2, M, r)
        self._prior = torch.from_numpy(START + priors).clamp(*_PRIOR_RANGE).to(self._base.device)
        self._lora.load({name: state[name] for name in self._lora.layout})
        self._posterior.restart(self._prior)
        self._start = {
            name: tensor.detach().clone() for name, tensor in self._lora.named_parameters().items()
        }

    def load_global(self, state: State) -> None:
        self._lora.load_global(state)

    def private_state(self) -> Arrays:
        """Copy the raw posterior (2, M, r) and the modulator's weights; neither is sent."""
        return copy_out(self._variational)

    def load_private(self, state: State) -> None:
        copy_in(self._variational, state)

    def merged_state(self) -> Arrays:
        return self.state()

    def as_lora(self) -> dict[str, LoraFactors]:
        return self._lora.as_lora()

    def remove(self) -> None:
        self._lora.remove()

    def penalty(self, examples: Sequence[Example], max_length: int, round_number: int) -> Penalty:
        """Return the loss term of every step of a round; `examples` are the client's own.

        Raises:
            TextTooLong: an example exceeds the base model's context.
        """
        plan = self._plan
        weight = size_weight(plan.alpha_s, round_number, plan.warm_rounds)
        z = self._fourier(examples, max_length) if self._modulator is not None else None

        def penalty(parameters: Mapping[str, nn.Parameter]) -> Tensor:
            gamma = self._posterior.gamma()
            prior = self._client_prior(z)
            size = size_term(column_norms(parameters, self._modules), gamma)
            kl = gamma_kl(gamma[0], gamma[1], prior[0], prior[1]).mean()
            return weight * size + plan.alpha_p * kl + plan.alpha_f * proximal_term(parameters, self._start)

        return penalty

    @torch.no_grad()
    def end_round(self) -> None:
        """Set the prior that is sent: .9 of the shared prior and .1 of the client's posterior.

        The coordinator's weighted mean of these is .9 a_g + .1 sum w_i a_i, and so for b.
        """
        self._prior = (1 - _POSTERIOR_WEIGHT) * self._prior + _POSTERIOR_WEIGHT * self._posterior.gamma()

    def _client_prior(self, z: Tensor | None) -> Tensor:
        """Return this client's prior (2, M, r): the shared prior, pooled with the modulator's."""
        if self._modulator is None or z is None:
            return self._prior
        return pooled(self._prior, self._modulator(z))

    def _fourier(self, examples: Sequence[Example], max_length: int) -> Tensor:
        return fourier(mean_feature(self._base, examples, max_length), self._frequencies)


def with_importance(lora: Adapter, base: BaseModel, strategy: AgentStrategy, *, seed: int) -> Adapter:
    """Wrap an adapter in `VariationalAdapter` if the strategy learns importance."""
    plan = strategy.traits.importance
    return VariationalAdapter(lora, base, plan, seed=seed) if plan is not None else lora


def posterior_of(private: State) -> Tensor:
    """Return shapes and rates (2, M, r) of an adapter's private state."""
    return positive(torch.from_numpy(private[_POSTERIOR]))
