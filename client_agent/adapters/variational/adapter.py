"""An ordinary LoRA with what learns which of its ranks matter: posterior and modulator, and a common prior.

The prior travels, as what it is more than 1, since zeros are where everybody starts. A tenth of what a client
sends is its posterior, so that the coordinator can tell it; the modulator never travels. Knows no round's
file and no wire.
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
from client_agent.adapters.variational.modulator import Modulator, fourier, frequencies, mean_feature, pooled
from client_agent.adapters.variational.posterior import (
    Posterior,
    column_norms,
    gamma_kl,
    importance,
    positive,
    proximal_term,
    size_term,
    size_weight,
)
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.strategies.base import AgentStrategy
from schemas.maths.adapter import Layout, in_order, lora_modules, prior_layout, prior_name
from schemas.messages.importance import ImportancePlan

_FOLLOWS = 0.1
"""How much of a client's posterior is in the prior that it sends."""

_PRIOR_RANGE = (0.1, 50.0)
_POSTERIOR = "posterior.u"

Arrays = dict[str, NDArray[np.float32]]


class VariationalAdapter(Removable):
    """A LoRA whose ranks have a posterior over their importance, row by row of `lora_modules`."""

    def __init__(self, lora: Adapter, base: BaseModel, plan: ImportancePlan, *, seed: int) -> None:
        self._lora = lora
        self._base = base
        self._plan = plan
        self._modules = lora_modules(lora.layout)
        priors = prior_layout(lora.layout)
        rank = lora.layout[f"{self._modules[0]}.A"][0]
        self.layout: Layout = in_order({**lora.layout, **priors})
        self._prior = torch.ones(2, len(self._modules), rank, device=base.device)
        self._posterior = Posterior(len(self._modules), rank).to(base.device)
        self._own: dict[str, nn.Parameter] = {_POSTERIOR: self._posterior.u}
        self._modulator: Modulator | None = None
        if plan.modulator:
            self._modulator = Modulator(plan.fourier_features, len(self._modules), rank, seed=seed)
            self._modulator.to(base.device)
            self._frequencies = frequencies(2 * base.layers, plan.fourier_features, seed).to(base.device)
            self._own |= {f"modulator.{name}": one for name, one in self._modulator.named_parameters()}
        self._start: dict[str, Tensor] = {}

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Give every A and B, the posterior and the modulator."""
        return {**self._lora.named_parameters(), **self._own}

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Let A and B train as they do alone, the rest at a rate of its own, and without weight decay."""
        own = {"params": list(self._own.values()), "lr": self._plan.variational_rate, "weight_decay": 0.0}
        return [*self._lora.parameter_groups(learning_rate), own]

    def state(self) -> Arrays:
        """Copy A and B, and the prior of every module: (2, r), shapes and rates less 1."""
        offset = np.array((self._prior - 1).cpu().numpy(), np.float32)
        priors = {prior_name(module): offset[:, row].copy() for row, module in enumerate(self._modules)}
        return dict(sorted({**self._lora.state(), **priors}.items()))

    def load(self, state: State) -> None:
        """Set A, B and the prior; distance is measured from here, and the posterior begins at the prior."""
        require_fit(self.layout, state)
        priors = np.stack([state[prior_name(module)] for module in self._modules], 1)  # (2, M, r)
        self._prior = torch.from_numpy(1 + priors).clamp(*_PRIOR_RANGE).to(self._base.device)
        self._lora.load({name: state[name] for name in self._lora.layout})
        self._posterior.restart(self._prior)
        self._start = {name: one.detach().clone() for name, one in self._lora.named_parameters().items()}

    def load_global(self, state: State) -> None:
        """Refuse, as ordinary LoRA does."""
        self._lora.load_global(state)

    def private_state(self) -> Arrays:
        """Copy the raw posterior (2, M, r) and the modulator's weights; no body has them as they are."""
        return copy_out(self._own)

    def load_private(self, state: State) -> None:
        """Set the posterior and the modulator's weights."""
        copy_in(self._own, state)

    def merged_state(self) -> Arrays:
        """Give the state: there is one branch."""
        return self.state()

    def as_lora(self) -> dict[str, LoraFactors]:
        """Give A and scale * B of every module."""
        return self._lora.as_lora()

    def remove(self) -> None:
        """Put the original linear layers back."""
        self._lora.remove()

    def penalty(self, examples: Sequence[Example], max_length: int, round_number: int) -> Penalty:
        """Give what is added to the loss of every step of a round; `examples` are the client's own.

        Raises:
            TextTooLong: an example has more tokens than the base model reads.
        """
        plan = self._plan
        weight = size_weight(plan.alpha_s, round_number, plan.warm_rounds)
        z = self._fourier(examples, max_length) if self._modulator is not None else None

        def penalty(parameters: Mapping[str, nn.Parameter]) -> Tensor:
            gamma = self._posterior.gamma()
            prior = self._client_prior(z)
            size = size_term(column_norms(parameters, self._modules), importance(gamma))
            kl = gamma_kl(gamma[0], gamma[1], prior[0], prior[1]).mean()
            return weight * size + plan.alpha_p * kl + plan.alpha_f * proximal_term(parameters, self._start)

        return penalty

    @torch.no_grad()
    def end_round(self) -> None:
        """Make the prior that is sent: .9 of the common one and .1 of the own posterior.

        The coordinator's weighted mean of these is .9 a_g + .1 sum w_i a_i, and so for b.
        """
        self._prior = (1 - _FOLLOWS) * self._prior + _FOLLOWS * self._posterior.gamma()

    def _client_prior(self, z: Tensor | None) -> Tensor:
        """Give the prior of this client (2, M, r): the common one, pooled with the modulator's."""
        if self._modulator is None or z is None:
            return self._prior
        return pooled(self._prior, self._modulator(z))

    def _fourier(self, examples: Sequence[Example], max_length: int) -> Tensor:
        return fourier(mean_feature(self._base, examples, max_length), self._frequencies)


def with_importance(lora: Adapter, base: BaseModel, strategy: AgentStrategy, *, seed: int) -> Adapter:
    """Put what learns importance around an adapter, where the strategy asks for it; else give it back."""
    plan = strategy.traits.importance
    return VariationalAdapter(lora, base, plan, seed=seed) if plan is not None else lora


def posterior_of(private: State) -> Tensor:
    """Read shapes and rates (2, M, r) from an adapter's private state."""
    return positive(torch.from_numpy(private[_POSTERIOR]))
