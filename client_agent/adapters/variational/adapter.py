"""An ordinary LoRA with a posterior over the importance of its ranks, and a shared prior.

The prior is sent less `START`, since every client starts at zeros. A tenth of the prior that a client sends
is its posterior.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_agent.adapters.base import (
    AdapterBase,
    LoraFactors,
    Penalty,
    State,
    copy_in,
    copy_out,
    require_fit,
)
from client_agent.adapters.lora import LoraAdapter
from client_agent.adapters.proximal import proximal_term
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
from schemas.maths.adapter import Layout, in_order, lora_modules, prior_layout, prior_name
from schemas.strategies.ca_pfl import CaPflOptions

_POSTERIOR_WEIGHT = 0.1
"""Weight of the client's posterior in the prior that it sends."""

_PRIOR_RANGE = (0.1, 50.0)
_POSTERIOR = "posterior.u"

Arrays = dict[str, NDArray[np.float32]]


class VariationalAdapter(AdapterBase):
    """A LoRA with a posterior over the importance of its ranks, in the module order of `lora_modules`."""

    def __init__(self, lora: LoraAdapter, base: BaseModel, plan: CaPflOptions) -> None:
        self._lora = lora
        self._device = base.device
        self._plan = plan
        self._modules = lora_modules(lora.layout)
        priors = prior_layout(lora.layout)
        rank = lora.layout[f"{self._modules[0]}.A"][0]
        self.layout: Layout = in_order({**lora.layout, **priors})
        self._prior = torch.full((2, len(self._modules), rank), START, device=base.device)
        self._posterior = Posterior(len(self._modules), rank).to(base.device)
        self._variational: dict[str, nn.Parameter] = {_POSTERIOR: self._posterior.u}
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
        # Sums of clipped updates may leave the range in which the gamma functions are stable.
        self._prior = torch.from_numpy(START + priors).clamp(*_PRIOR_RANGE).to(self._device)
        self._lora.load({name: state[name] for name in self._lora.layout})
        self._posterior.restart(self._prior)
        parameters = self._lora.named_parameters()
        self._start = {name: tensor.detach().clone() for name, tensor in parameters.items()}

    def load_global(self, state: State) -> None:
        self._lora.load_global(state)

    def private_state(self) -> Arrays:
        """Copy the raw posterior (2, M, r), which is not sent."""
        return copy_out(self._variational)

    def load_private(self, state: State) -> None:
        """Set the posterior.

        Raises:
            LayoutMismatch: a tensor is missing or unexpected, or has another shape.
        """
        # Version 0.2.0 stored counts for an option that is gone (docs/decisions/0087), and agents are
        # upgraded in the middle of a federation.
        own_state = {name: values for name, values in state.items() if name != "ranks.below"}
        require_fit({_POSTERIOR: tuple(self._posterior.u.shape)}, own_state)
        copy_in(self._variational, own_state)

    def merged_state(self) -> Arrays:
        return self.state()

    def as_lora(self) -> dict[str, LoraFactors]:
        return self._lora.as_lora()

    def remove(self) -> None:
        self._lora.remove()

    def penalty(self, examples: Sequence[Example], max_length: int, round_number: int) -> Penalty:
        """Return the loss term of every step of a round."""
        plan = self._plan
        weight = size_weight(plan.alpha_s, round_number, plan.warm_rounds)

        def penalty(parameters: Mapping[str, nn.Parameter]) -> Tensor:
            gamma, prior = self._posterior.gamma(), self._prior  # (2, M, r)
            size = size_term(column_norms(parameters, self._modules), gamma)
            kl = gamma_kl(gamma[0], gamma[1], prior[0], prior[1]).mean()
            return weight * size + plan.alpha_p * kl + plan.alpha_f * proximal_term(parameters, self._start)

        return penalty

    @torch.no_grad()
    def end_round(self) -> None:
        """Set the prior that is sent: .9 of the shared one and .1 of the posterior.

        The coordinator's weighted mean of these priors is .9 a_g + .1 sum w_i a_i, and so for b.
        """
        gamma = self._posterior.gamma()
        self._prior = (1 - _POSTERIOR_WEIGHT) * self._prior + _POSTERIOR_WEIGHT * gamma


def posterior_of(private: State) -> Tensor:
    """Return shapes and rates (2, M, r) of an adapter's private state."""
    return positive(torch.from_numpy(private[_POSTERIOR]))
