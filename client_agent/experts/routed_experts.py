"""A bank of experts as one client uses it: the specialists of its choice, weighed by its own router."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.adapters.base import (
    Adapter,
    AdapterBase,
    LoraFactors,
    Penalty,
    State,
    copy_in,
    copy_out,
    require_bare,
)
from client_agent.adapters.expert_bank import ExpertBank
from client_agent.adapters.expert_lora import ExpertLora
from client_agent.adapters.expert_pq import ExpertPQ
from client_agent.adapters.frames import Frames, first_adapted_layer
from client_agent.errors import LayoutMismatch
from client_agent.experts.exploration import Turn, drawn, temperature, turns
from client_agent.experts.memory import Choice, ExpertMemory
from client_agent.experts.probe_set import Prober
from client_agent.experts.responsibilities import (
    ProbeLosses,
    differences,
    fit,
    regret,
    rejects,
    responsibilities,
    uniform,
)
from client_agent.experts.router import RoutedPasses, TokenRouter, consistency
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import Layout
from schemas.maths.bank import DRAWS, SHARED, exploring_rounds
from schemas.messages.federations import AdapterPlan
from schemas.strategies.fed_vemoe import FedVemoeOptions

_RESPONSIBILITY = "routing.x"
_NEWBORN = 0.9
"""The responsibility of a newborn in the first round of a client that asked for it."""

CHOSEN = "routing.chosen"
"""The private tensor of the ordinals of the chosen specialists."""

GAMMA = "routing.gamma"
"""The private tensor of the router's temperature."""


Arrays = dict[str, NDArray[np.float32]]

log = logging.getLogger(__name__)


class RoutedExperts(AdapterBase):
    """The shared expert and the client's specialists; what is scored, exported and generates.

    Private tensors are the responsibilities, the choice and the router's rows. With a probe set
    (`probe_with`) the responsibilities are computed whenever experts are loaded; otherwise they are uniform,
    or those of `load_private`.
    """

    def __init__(self, bank: ExpertBank, base: BaseModel, routing: FedVemoeOptions) -> None:
        self.bank = bank
        self.routing = routing
        self.layout: Layout = bank.layout
        bank.trains_shared = routing.shared
        self._device = base.device
        self._specialists = tuple(expert for expert in bank.experts if expert != SHARED)
        if len(self._specialists) < routing.specialists:
            raise LayoutMismatch(
                f"the bank has {len(self._specialists)} specialists, and top_m {routing.top_m} needs "
                f"{routing.specialists}; use a smaller top_m"
            )
        self._router = TokenRouter(base.hidden_size, self._specialists, base.device)
        self._passes = RoutedPasses(
            base, bank, self._router, routing.gamma, keeps_hidden=routing.consistency > 0
        )
        self._prober: Prober | None = None
        self._memory: ExpertMemory | None = None
        self._losses: ProbeLosses | None = None
        self._round = 0
        self.since = 0
        self.responsibilities = uniform(self._specialists)
        self.choose(self._specialists[: routing.specialists])

    @property
    def chosen(self) -> tuple[int, ...]:
        """The specialists that act."""
        return self.bank.specialists

    @property
    def router(self) -> TokenRouter | None:
        """The router that weighs the chosen specialists by token; None with fewer than two."""
        return self._router if len(self.chosen) > 1 else None

    def probe_with(self, prober: Prober | None, memory: ExpertMemory) -> None:
        """Choose experts by their losses on a probe set, and record choices in `memory`.

        Args:
            prober: computes the losses; None = there is no probe set, and experts are drawn by chance.
        """
        self._prober, self._memory = prober, memory

    def choose(self, specialists: Sequence[int]) -> None:
        """Make these specialists act: one at weight 1, several by the router."""
        self.bank.select(specialists)
        routed = len(specialists) > 1
        self._passes.responsibilities = {k: self.responsibilities[k] for k in specialists} if routed else {}

    def begin_round(self, round_number: int, total_rounds: int, steps: int) -> list[Turn]:
        """Draw the specialists of a round, and store the choice; the same again after a restart.

        A client that rejected all experts trains the newborn expert for one round, because a newborn starts
        weaker than experts that others have trained.

        Returns:
            the turns in which they train; `choose` makes those of a turn act.
        """
        memory = self._required_memory()
        age = round_number - self.since
        explore = exploring_rounds(self.routing.explore_rounds, total_rounds - self.since)
        exploring = age <= explore
        # While all experts are equal, two are drawn, so that several clients train each expert.
        count = DRAWS if exploring else self.routing.specialists
        specialists = drawn(
            self.responsibilities,
            count,
            temperature(age, explore),
            secret=memory.secret,
            round_number=round_number,
        )
        newborn = self._newborn(memory, round_number)
        if newborn is not None and not exploring:
            remaining = [expert for expert in specialists if expert != newborn]
            # The newborn expert replaces the least responsible of the drawn experts.
            specialists = (newborn, *remaining)[:count]
            share = (1 - _NEWBORN) / max(1, len(self._specialists) - 1)
            self.responsibilities = {k: _NEWBORN if k == newborn else share for k in self._specialists}
        planned = turns(specialists, steps, exploring=exploring)
        trained = tuple(expert for turn in planned for expert in turn.specialists)
        self._round = round_number
        memory.record(round_number, self._choice(memory, trained, exploring=exploring))
        log.info(
            "round %d: experts %s train%s",
            round_number,
            ", ".join(map(str, trained)),
            ", drawn at random" if exploring else "",
        )
        return planned

    def _newborn(self, memory: ExpertMemory, round_number: int) -> int | None:
        """Return the expert born since a round in which this client rejected all; None = there is none."""
        earlier = [number for number in memory.rounds if number < round_number]
        last = memory.rounds[max(earlier)] if earlier else None
        if last is None or not last.rejects:
            return None
        # Ordinals grow with every birth, so the newest expert has the largest.
        return max(set(self._specialists) - last.responsibilities.keys(), default=None)

    def end_round(self) -> None:
        """Choose by the losses after training, and store that of the personal model."""
        memory = self._required_memory()
        choice = memory.rounds[self._round]
        if self._prober is None:
            self.choose(choice.trained[: self.routing.specialists])
            return
        self._probe(self._prober)
        memory.record(self._round, choice.model_copy(update={"local": self._prober.loss()}))

    def named_parameters(self) -> dict[str, nn.Parameter]:
        routed = self._router.parameters(self.chosen) if self.router is not None else {}
        return {**self.bank.named_parameters(), **routed}

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return the group of the bank, and the router's without weight decay."""
        groups = self.bank.parameter_groups(learning_rate)
        if self.router is not None:
            rows = list(self._router.parameters(self.chosen).values())
            # Decay would pull the router back to the responsibilities, which `consistency` does by the plan's
            # factor.
            groups.append({"params": rows, "lr": learning_rate, "weight_decay": 0.0})
        return groups

    def state(self) -> Arrays:
        return self.bank.state()

    def load(self, state: State) -> None:
        """Set all experts, and with a probe set choose among them."""
        self.bank.load(state)
        if self._prober is not None:
            self._probe(self._prober)

    def load_global(self, state: State) -> None:
        self.bank.load_global(state)

    def private_state(self) -> Arrays:
        """Copy r_k `routing.x3` (), the ordinals `routing.chosen` (m - 1,), the router's temperature
        `routing.gamma` (), and its rows `router.x3.u` (d,), `router.x3.c` ().
        """
        routing = {
            f"{_RESPONSIBILITY}{expert}": np.array(r, np.float32)
            for expert, r in self.responsibilities.items()
        }
        chosen = np.array(self.chosen, np.float32)
        gamma = np.array(self.routing.gamma, np.float32)
        return {
            CHOSEN: chosen,
            GAMMA: gamma,
            **routing,
            **copy_out(self._router.parameters(self._specialists)),
        }

    def load_private(self, state: State) -> None:
        """Set the router's rows, and without a probe set responsibilities and choice.

        Experts that are newer than the state get rows of zeros. Tensors of experts that have left are
        ignored.
        """
        rows = self._router.parameters(self._specialists)
        zeros = {name: np.zeros(tuple(row.shape), np.float32) for name, row in rows.items()}
        copy_in(rows, {name: state.get(name, zero) for name, zero in zeros.items()})
        if self._prober is not None:
            return
        names = {expert: f"{_RESPONSIBILITY}{expert}" for expert in self._specialists}
        # A newer expert has no stored responsibility; then all stay uniform.
        if all(name in state for name in names.values()):
            self.responsibilities = {expert: float(state[name]) for expert, name in names.items()}
        stored = [int(expert) for expert in state.get(CHOSEN, np.empty(0))]
        if stored and set(stored) <= set(self._specialists):
            self.choose(stored)

    def merged_state(self) -> Arrays:
        return self.bank.merged_state()

    def as_lora(self) -> dict[str, LoraFactors]:
        """Return one LoRA of shared and chosen experts: [B_0, a_1 B_1, ...] by module path.

        This is exact with one specialist. With several, a_k = r_k / sum r are the router's weights of a token
        for which its scores are zero.
        """
        return self.bank.as_lora_of({SHARED: 1.0, **self.prior_weights()})

    @contextmanager
    def flattened(self) -> Iterator[None]:
        """Make the adapter compute what `as_lora` returns: the same weights for every token."""
        weights = self.prior_weights()
        self._passes.responsibilities = {}
        self.bank.weigh(torch.tensor(list(weights.values()), device=self._device))
        try:
            yield
        finally:
            self.choose(self.chosen)

    def prior_weights(self) -> dict[int, float]:
        """Return r_k / sum r of the chosen specialists: their weights without a router."""
        total = sum(self.responsibilities[expert] for expert in self.chosen)
        if not total:
            return uniform(self.chosen)
        return {expert: self.responsibilities[expert] / total for expert in self.chosen}

    def penalty(self, examples: Sequence[Example], max_length: int, round_number: int) -> Penalty | None:
        """Return the distance of a step's mean weights from the responsibilities; None without a router.

        The hidden states of the step's tokens are those of its own passes; the weights are computed again,
        since the graph of the loss is gone when the term is added.
        """
        if not self.routing.consistency or self.router is None:
            return None

        def step_penalty(_: Mapping[str, nn.Parameter]) -> torch.Tensor:
            weighed = self._passes.responsibilities
            weights = self._router.weights(self._passes.read_hidden(), weighed, self.routing.gamma)
            return self.routing.consistency * consistency(weights, weighed)

        return step_penalty

    def remove(self) -> None:
        self._passes.remove()
        self.bank.remove()

    def _probe(self, prober: Prober) -> None:
        """Compute losses and responsibilities of the bank as it is, and choose the most responsible."""
        memory = self._required_memory()
        self._passes.responsibilities = {}  # candidates act alone, at weight 1
        self._losses = prober.losses(self.bank)
        self.responsibilities = responsibilities(self._losses.specialists, tau=self.routing.tau)
        best = drawn(
            self.responsibilities, self.routing.specialists, 0.0, secret=memory.secret, round_number=0
        )
        self.choose(best)

    def _choice(self, memory: ExpertMemory, trained: tuple[int, ...], *, exploring: bool) -> Choice:
        if self._prober is None or self._losses is None:
            return Choice(responsibilities=self.responsibilities, trained=trained, exploring=exploring)
        local = memory.local_before(self._round, self._prober.digest)
        return Choice(
            responsibilities=self.responsibilities,
            trained=trained,
            exploring=exploring,
            fit=fit(self._losses),
            regret=regret(self._losses, local) if local is not None else None,
            rejects=not exploring and rejects(self._losses, local, regret_above=self.routing.regret_above),
            probe=self._prober.digest,
            differences={expert: differences(self._losses, expert) for expert in trained},
        )

    def _required_memory(self) -> ExpertMemory:
        if self._memory is None:
            raise RuntimeError("a bank is trained with a memory of its choices: call probe_with first")
        return self._memory


def routed_by_token(adapter: Adapter) -> RoutedExperts | None:
    """Return an adapter whose experts are weighed by token; None if it is another one."""
    return adapter if isinstance(adapter, RoutedExperts) and adapter.router is not None else None


def inject_experts(
    base: BaseModel,
    plan: AdapterPlan,
    frames: Frames,
    experts: Sequence[int],
    routing: FedVemoeOptions,
    *,
    seed: int,
) -> RoutedExperts:
    """Wrap the linear layers of the plan in a bank of experts, whose function is that of the base model.

    They are LoRA with B = 0, or P = Q = 0 between `frames`, as the plan's kind.

    Raises:
        AdapterInPlace: the base model carries an adapter already.
        LayoutMismatch: the model or the frames do not fit the plan, or the bank has too few specialists.
    """
    require_bare(base)
    # Layers below the first adapter compute the same in every step, so that their outputs can be stored.
    base.prefix.split_at(base, first_adapted_layer(base, plan, frames))
    bank: ExpertBank = (
        ExpertLora(base, plan, experts, seed=seed)
        if plan.kind == "lora"
        else ExpertPQ(base, plan, frames, experts)
    )
    try:
        return RoutedExperts(bank, base, routing)
    # Also after Ctrl-C: a model with half of a bank in it could not be used again.
    except BaseException:
        bank.remove()
        raise
