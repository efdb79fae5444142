"""An ordinary LoRA with a posterior over the importance of its ranks, and a shared prior.

The prior is sent less `START`, since every client starts at zeros. A tenth of the prior that a client sends
is its posterior. Idle ranks are not in the model; their A and B are sent as they were served, which is to
send nothing of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

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
    importance,
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
_BELOW = "ranks.below"
"""Rounds in a row in which each rank's importance was below the cut (M, r)."""

Arrays = dict[str, NDArray[np.float32]]
Floats = NDArray[np.float32]
Ranks = NDArray[np.bool_]
IDLE_AFTER: Final = 2
"""Rounds in a row with an importance below the cut, after which a rank is idle: neither in memory nor in the
computation. Its count stays until it returns."""


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
        self._served: Arrays = lora.state()
        self._below = np.zeros((len(self._modules), rank), np.float32)
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
        """Copy A, B and the prior of every module: shapes and rates less `START`, (2, r).

        Idle ranks have the A and B that were loaded.
        """
        offset = np.array((self._prior - START).cpu().numpy(), np.float32)
        priors = {prior_name(module): offset[:, row].copy() for row, module in enumerate(self._modules)}
        return dict(sorted({**self._all_ranks(), **priors}.items()))

    def load(self, state: State) -> None:
        """Set A, B and the prior; restart the posterior at the prior and the proximal term at A, B.

        No rank is idle until `load_private`.
        """
        require_fit(self.layout, state)
        priors = np.stack([state[prior_name(module)] for module in self._modules], 1)  # (2, M, r)
        # Sums of clipped updates may leave the range in which the gamma functions are stable.
        self._prior = torch.from_numpy(START + priors).clamp(*_PRIOR_RANGE).to(self._device)
        self._lora.load({name: state[name] for name in self._lora.layout})
        self._posterior.restart(self._prior)
        self._served = self._lora.state()
        self._below = np.zeros_like(self._below)
        self._restart_proximal_term()

    def load_global(self, state: State) -> None:
        self._lora.load_global(state)

    def private_state(self) -> Arrays:
        """Copy the raw posterior (2, M, r) and the counts (M, r) of idle ranks, which are not sent."""
        return {**copy_out(self._variational), _BELOW: self._below.copy()}

    def load_private(self, state: State) -> None:
        """Set the posterior, and take the idle ranks out of the model.

        Raises:
            LayoutMismatch: a tensor is missing or unexpected, or has another shape.
        """
        require_fit({_POSTERIOR: tuple(self._posterior.u.shape), _BELOW: self._below.shape}, state)
        copy_in(self._variational, {_POSTERIOR: state[_POSTERIOR]})
        self._drop(np.array(state[_BELOW], np.float32))

    @property
    def has_idle_ranks(self) -> bool:
        return not bool(active(self._below).all())

    def fill_ranks(self) -> None:
        """Put all ranks into the model, idle ones with B = 0, until `readmit`: its function is the same."""
        filled = self._all_ranks()
        for row, module in enumerate(self._modules):
            # B = 0 keeps the function, and the gradient by B still tells what a rank would do.
            filled[f"{module}.B"][:, ~active(self._below[row])] = 0
        self._lora.load(filled)

    @torch.no_grad()
    def readmit(self) -> None:
        """Return idle ranks to the model by the gradients that B has now, with the values that were served.

        Their posterior restarts at the prior.
        """
        parameters, gradients = self._lora.named_parameters(), []
        for module in self._modules:
            gradient = parameters[f"{module}.B"].grad
            if gradient is None:
                raise RuntimeError("the gradients of all ranks are needed first")
            gradients.append(gradient.abs().sum(0).float().cpu().numpy())
        back = returning(self._below, np.stack(gradients))
        restarted = Posterior(*self._below.shape).to(self._device)
        restarted.restart(self._prior)
        mask = torch.from_numpy(back).to(self._device)
        self._posterior.u.copy_(torch.where(mask, restarted.u, self._posterior.u))
        # Returning ranks start from what was served.
        self._lora.load(self._served)
        self._drop(np.where(back, np.float32(0), self._below))

    def _drop(self, below: NDArray[np.float32]) -> None:
        """Take the ranks out of the model that are idle by these counts."""
        self._hold(self._all_ranks(), below)
        self._restart_proximal_term()

    def _hold(self, values: State, below: NDArray[np.float32]) -> None:
        """Put those ranks of `values` into the model that are not idle by these counts."""
        self._below = below
        self._lora.load(values)
        if self.has_idle_ranks:
            self._lora.keep_ranks(dict(zip(self._modules, active(below), strict=True)))

    def _all_ranks(self) -> Arrays:
        """Copy A and B of all ranks; those not in the model as they were loaded."""
        in_model, whole = self._lora.state(), {name: values.copy() for name, values in self._served.items()}
        for module, trained in zip(self._modules, active(self._below), strict=True):
            if in_model[f"{module}.A"].shape == whole[f"{module}.A"].shape:
                # `fill_ranks` has put all ranks into the model.
                trained = np.ones_like(trained)
            whole[f"{module}.A"][trained] = in_model[f"{module}.A"]
            whole[f"{module}.B"][:, trained] = in_model[f"{module}.B"]
        return whole

    def _restart_proximal_term(self) -> None:
        parameters = self._lora.named_parameters()
        self._start = {name: tensor.detach().clone() for name, tensor in parameters.items()}

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
        trained = torch.from_numpy(active(self._below)).to(self._device)

        def penalty(parameters: Mapping[str, nn.Parameter]) -> Tensor:
            # Idle ranks have no columns in the model.
            gamma, prior = self._posterior.gamma()[:, trained], self._prior[:, trained]  # (2, n)
            size = size_term(column_norms(parameters, self._modules), gamma)
            kl = gamma_kl(gamma[0], gamma[1], prior[0], prior[1]).mean()
            return weight * size + plan.alpha_p * kl + plan.alpha_f * proximal_term(parameters, self._start)

        return penalty

    @torch.no_grad()
    def end_round(self) -> None:
        """Set the prior that is sent, .9 of the shared one and .1 of the posterior; drop unimportant ranks.

        The coordinator's weighted mean of these priors is .9 a_g + .1 sum w_i a_i, and so for b. What a rank
        that is dropped has learnt in this round is lost.
        """
        gamma = self._posterior.gamma()
        self._prior = (1 - _POSTERIOR_WEIGHT) * self._prior + _POSTERIOR_WEIGHT * gamma
        below = counted(self._below, importance(gamma).cpu().numpy(), self._plan.cut)
        values = self._all_ranks()
        for module, remains in zip(self._modules, active(below), strict=True):
            # Sent as served, so that the difference, and with it the bytes, is zero.
            values[f"{module}.A"][~remains] = self._served[f"{module}.A"][~remains]
            values[f"{module}.B"][:, ~remains] = self._served[f"{module}.B"][:, ~remains]
        self._hold(values, below)


def ranks_of(private: State) -> NDArray[np.bool_]:
    """Return the ranks (M, r) that are in the model, by an adapter's private state."""
    shape = private[_POSTERIOR].shape[1:]
    return active(np.asarray(private.get(_BELOW, np.zeros(shape, np.float32))))


def posterior_of(private: State) -> Tensor:
    """Return shapes and rates (2, M, r) of an adapter's private state."""
    return positive(torch.from_numpy(private[_POSTERIOR]))


def active(below: Floats) -> Ranks:
    """Return the ranks (M, r) that are trained, by their counts of rounds below the cut."""
    return below < IDLE_AFTER


def counted(below: Floats, importance: Floats, cut: float) -> Floats:
    """Return the counts (M, r) after a round with these importances (M, r).

    Of a module whose ranks would all be idle, the most important one of those that were trained stays.
    """
    trained = active(below)
    after = np.where(trained, np.where(importance < cut, below + 1, 0), below).astype(np.float32)
    for row in np.flatnonzero(~active(after).any(axis=1)):
        best = np.where(trained[row], importance[row], -np.inf).argmax()
        # A module without ranks would get no gradient, and could never return.
        after[row, best] = IDLE_AFTER - 1
    return after


def returning(below: Floats, gradients: Floats) -> Ranks:
    """Return the idle ranks (M, r) whose gradient exceeds that of every trained rank of their module.

    `gradients` (M, r) are the L1 norms of the loss's gradients by the columns of B, with idle columns at 0.
    """
    trained = active(below)
    largest = np.where(trained, gradients, -np.inf).max(axis=1, keepdims=True)  # (M, 1)
    return np.asarray(~trained & (gradients > largest))
