"""A bank of experts in a round: download, choice, training, and the input of a sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from client_agent.errors import LayoutMismatch, SettingsUnusable
from client_agent.experts.bank_files import (
    bank_state,
    download_bank,
    experts_of,
    plain_names,
    read_bank,
    read_final_index,
    read_index,
    store_experts,
    store_final_bank,
)
from client_agent.experts.memory import EXPERTS, Choice, ExpertMemory
from client_agent.rounds.part import Part, Setting
from client_agent.rounds.served_weights import Arrays, ServedForm, StoredWeights
from schemas.maths.adapter import Layout, in_order
from schemas.maths.bank import SHARED, bank_layout, expert_tensors
from schemas.maths.factors import State
from schemas.messages.federations import FederationPlan
from schemas.messages.updates import BankIndex
from schemas.strategies.fed_vemoe import FedVemoeOptions

if TYPE_CHECKING:
    from client_agent.adapters.base import Adapter
    from client_agent.experts.routed_experts import RoutedExperts
    from client_agent.rounds.client import Session
    from client_agent.rounds.local_steps import LocalSteps, RoundSteps
    from client_agent.rounds.opened_round import OpenedRound
    from client_agent.rounds.sum_input import RoundResult
    from client_agent.rounds.training_result import TrainingResult
    from client_agent.training.loop import TrainingOutcome
    from client_agent.training.silo import Silo


@dataclass(frozen=True, slots=True)
class ServedBank(ServedForm):
    """Weights with the tensors of the shared expert, and the digests of the other experts' files."""

    def values(self, adapter: Adapter, served: StoredWeights) -> State:
        routed = cast("RoutedExperts", adapter)
        index, layout = _index(served), routed.bank.expert_layout
        if served.session is not None:
            store_experts(served.session, index, layout)  # a file may have been lost since the download
            routed.since = index.since
        return bank_state(served.home, served.body, index, layout)

    def complete(self, work: OpenedRound, content: bytes, layout: Callable[[], Layout]) -> bytes:
        download_bank(work.session, work.rounds, work.folder, content, layout())
        return content

    def complete_final(
        self, session: Session, round_number: int, digest: str, content: bytes, layout: Callable[[], Layout]
    ) -> bytes:
        store_final_bank(session, content, layout())
        return content

    def summed_layout(self, work: OpenedRound) -> Layout:
        experts = (entry.expert for entry in read_index(work.folder).experts)
        return bank_layout(_expert_layout(work), experts)

    def summed_result(self, work: OpenedRound, result: RoundResult) -> RoundResult:
        """Complete a round's result by the experts that were served, and this client's choice among them.

        If the file of the choice is lost or damaged, the client belongs to the experts that its training
        changed.
        """
        choice = ExpertMemory(work.session.home / EXPERTS).rounds.get(work.brief.round)
        served = read_bank(work.session.home, work.folder, _expert_layout(work))
        return replace(
            result,
            served=plain_names(served),
            trained=plain_names(result.trained),
            bank=read_index(work.folder),
            responsibilities=_trained_responsibilities(choice) if choice is not None else None,
            rejects=choice is not None and choice.rejects,
            differences=(choice.differences if choice is not None else None) or {},
        )


@dataclass(frozen=True, slots=True)
class BankOfExperts(Part):
    """The client trains the experts of its choice.

    Attributes:
        specialists: the size of a bank that a silo trains alone; a federation's index has its own.
    """

    action = "trains experts of a bank"
    excludes = frozenset({"a trainer", "torchrun", "private steps"})
    sends = "counts"
    # A router reads the hidden states of a step's own passes, and bare passes would be among them.
    adds_losses = False

    routing: FedVemoeOptions
    specialists: int = 0

    def silo(self, silo: Silo) -> Silo:
        """Return the silo with a probe set that is held out of training."""
        from client_agent.experts.probe_set import with_probe_set

        return with_probe_set(silo, self.routing)

    def inject(self, setting: Setting) -> Adapter:
        from client_agent.adapters.expert_bank import experts_in
        from client_agent.experts.routed_experts import inject_experts

        if setting.stored is not None:
            experts = experts_in(setting.stored)
        elif setting.served is not None:
            experts = experts_of(_index(setting.served))
        else:
            experts = tuple(range(self.specialists + 1))
        base, plan, frames = setting.silo.base, setting.plan, setting.frames
        return inject_experts(base, plan, frames, experts, self.routing, seed=setting.seed)

    def prepare(self, adapter: Adapter, setting: Setting) -> None:
        """Choose among experts by losses on the probe set; a bank that was trained has its choice."""
        from client_agent.experts.probe_set import prober_of

        if setting.stored is not None:
            return
        memory = ExpertMemory(setting.home / EXPERTS)
        prober = prober_of(setting.silo, self.routing, setting.max_length, memory.losses)
        cast("RoutedExperts", adapter).probe_with(prober, memory)

    def run(self, steps: RoundSteps) -> TrainingOutcome:
        """Train the specialists of a round beside the shared expert, turn by turn, each with a new optimiser.

        The optimiser state is not kept, because rounds train different experts.
        """
        from client_agent.training.loop import TrainingOutcome

        adapter, local = cast("RoutedExperts", steps.adapter), steps.local
        turns = adapter.begin_round(local.round_number, local.total_rounds, local.plan.steps)
        outcomes: list[TrainingOutcome] = []
        done = 0
        for index, turn in enumerate(turns):
            adapter.choose(turn.specialists)
            is_last = index == len(turns) - 1
            experts = ", ".join(map(str, turn.specialists))
            outcomes.append(
                steps.run(
                    _steps_of_turn(local, index, len(turns), turn.steps, done),
                    f"{local.title}, expert {experts}",
                    optimiser_state=None,
                    penalty=steps.penalty if adapter.router is not None else None,
                    beside=None if is_last else f"turn_{index}",
                )
            )
            done += turn.steps
        return TrainingOutcome(
            losses=[loss for outcome in outcomes for loss in outcome.losses],
            tokens=sum(outcome.tokens for outcome in outcomes),
            seconds=sum(outcome.seconds for outcome in outcomes),
            optimiser_state={},
        )


def bank_alone(plan: FederationPlan, specialists: int, top_m: int) -> BankOfExperts:
    """Return a bank that a silo trains alone: a shared expert and `specialists`.

    Raises:
        SettingsUnusable: the plan's adapter has LoRA ranks beside P and Q.
    """
    if plan.adapter.same_architecture_rank or plan.adapter.private_rank:
        raise SettingsUnusable(
            "--experts: experts over P and Q have no LoRA beside them; set same_architecture_rank and "
            "private_rank to 0 in the plan"
        )
    # Not validated: a silo alone may train more experts than the options of a plan allow.
    return BankOfExperts(FedVemoeOptions.model_construct(top_m=top_m), specialists)


def parts_of_file(trained: TrainingResult) -> tuple[BankOfExperts, ...]:
    """Return the bank with which `tessera agent train --out` wrote a file; () for another adapter.

    Raises:
        LayoutMismatch: the bank lacks the choice of its client.
    """
    from client_agent.adapters.expert_bank import is_bank
    from client_agent.experts.routed_experts import CHOSEN, GAMMA

    if not is_bank(trained.adapter):
        return ()
    private = trained.private
    if CHOSEN not in private or GAMMA not in private:
        raise LayoutMismatch("the bank lacks the choice of its client; pass a file that was trained here")
    top_m, gamma = len(private[CHOSEN]) + 1, float(private[GAMMA])
    return (BankOfExperts(FedVemoeOptions.model_construct(top_m=top_m, gamma=gamma)),)


def _index(served: StoredWeights) -> BankIndex:
    return read_final_index(served.home) if served.is_final else read_index(served.folder)


def _expert_layout(work: OpenedRound) -> Layout:
    """Return the layout of one expert, with plain names."""
    shared: Arrays = dict(expert_tensors(SHARED, work.trained.of(work.folder).adapter))
    return in_order({name: values.shape for name, values in shared.items()})


def _trained_responsibilities(choice: Choice) -> dict[int, float]:
    return {expert: choice.responsibilities[expert] for expert in choice.trained}


def _steps_of_turn(local: LocalSteps, index: int, count: int, steps: int, done: int) -> LocalSteps:
    """Return the steps of turn `index` of `count`, after `done` steps of earlier turns of the round."""
    # A turn is numbered like a round among `count` times as many: so the learning rate falls over turns as
    # over rounds, and each turn begins with other texts.
    return replace(
        local,
        plan=local.plan.model_copy(update={"steps": steps}),
        round_number=(local.round_number - 1) * count + index + 1,
        total_rounds=local.total_rounds * count,
        done=done,
        all_steps=local.plan.steps,
    )
