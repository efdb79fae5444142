"""Standalone training without a federation, in the plan's rounds and steps: the local baseline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from client_agent.adapters.base import Adapter
from client_agent.adapters.frames import Frames, random_frames
from client_agent.adapters.inject import inject
from client_agent.adapters.provenance import origin_of
from client_agent.alignment.pack import Pack
from client_agent.errors import SettingsUnusable
from client_agent.experts.inject import inject_experts
from client_agent.experts.memory import EXPERTS, ExpertMemory
from client_agent.experts.probing import prober_of, with_probe_set
from client_agent.experts.routed import RoutedExperts
from client_agent.model.loading import BaseModel
from client_agent.rounds.step_tracking import step_tracking
from client_agent.rounds.tracked import track_scores
from client_agent.rounds.train import learning_rate, train_locally, zeros_like
from client_agent.rounds.trained import Trained
from client_agent.storage.rate_store import RateStore
from client_agent.strategies.base import Routing, Traits
from client_agent.training.silo import Silo
from schemas.messages.federations import FederationPlan
from schemas.trackers.trackers import NO_TRACKERS, Trackers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OwnBank:
    """A bank that a silo trains alone: a shared expert and `specialists`, and how it chooses among them."""

    specialists: int
    routing: Routing
    memory: ExpertMemory


def own_bank(plan: FederationPlan, folder: Path, specialists: int, top_m: int) -> OwnBank:
    """Return a bank whose choices are remembered in an agent's folder.

    Raises:
        SettingsUnusable: the plan's adapter has LoRA ranks beside P and Q.
    """
    if plan.adapter.same_architecture_rank or plan.adapter.private_rank:
        raise SettingsUnusable(
            "--experts: experts over P and Q have no LoRA beside them; set same_architecture_rank and "
            "private_rank to 0 in the plan"
        )
    return OwnBank(specialists, Routing(top_m=top_m), ExpertMemory(folder / EXPERTS))


def train_alone(
    silo: Silo,
    plan: FederationPlan,
    pack: bytes | None,
    stop: Callable[[], bool],
    rates: RateStore,
    bank: OwnBank | None = None,
    trackers: Trackers = NO_TRACKERS,
) -> Iterator[Trained]:
    """Yield the result of every round of a plan; every round continues from the trained adapter.

    Args:
        pack: the alignment pack with the frames.
        rates: where a searched learning rate is kept.
        bank: train a bank of experts; None = the plan's adapter.
        trackers: record losses and scores.

    Raises:
        Stopped: `stop` returned true.
        AlignmentImpossible, SettingsUnusable: see `frames_of`.
        TrainerUnusable: the silo's trainer does not suit the plan.
        LayoutMismatch: the bank has fewer specialists than are to act.
    """
    if plan.privacy.training is not None:
        log.warning("privacy.training of the plan is not used here: of a training alone nothing is sent")
    if silo.trainer is not None:
        silo.trainer.require_suitable(plan.adapter, Traits(routing=bank.routing if bank else None))
    earlier: Trained | None = None
    if bank is not None:
        silo = with_probe_set(silo, bank.routing)
    frames = frames_of(silo.base, plan, pack)
    origin = origin_of(silo.base, plan.adapter, frames, gated=False, seed=plan.training.seed)
    with _injected(silo, plan, frames, bank) as adapter:
        rate = learning_rate(silo, adapter, plan.training, origin, rates, stop)
        if bank is not None and isinstance(adapter, RoutedExperts):
            memory, longest = bank.memory, plan.training.max_length
            adapter.probe_with(prober_of(silo, bank.routing, longest, memory.losses), memory)
        for round_number in range(1, plan.rounds.total + 1):
            earlier = train_locally(
                silo,
                adapter,
                plan.training,
                learning_rate=rate,
                origin=origin,
                round_number=round_number,
                total_rounds=plan.rounds.total,
                start=earlier.adapter if earlier is not None else zeros_like(adapter),
                earlier=earlier,
                federated=False,
                scores=plan.scores,
                stop=stop,
                report=step_tracking(trackers, round_number),
            )
            track_scores(trackers, round_number, earlier.scores)
            yield earlier


def _injected(silo: Silo, plan: FederationPlan, frames: Frames, bank: OwnBank | None) -> Adapter:
    if bank is None:
        return inject(silo.base, plan.adapter, frames, gated=False, seed=plan.training.seed)
    experts = range(bank.specialists + 1)
    return inject_experts(silo.base, plan.adapter, frames, experts, bank.routing, seed=plan.training.seed)


def require_frames(plan: FederationPlan, pack: bytes | None) -> None:
    """Check that the plan's adapter has frames if a pack is passed.

    Raises:
        SettingsUnusable: it has none.
    """
    if pack is not None and plan.adapter.kind == "lora":
        raise SettingsUnusable(
            "--pack: the plan trains an ordinary LoRA, which has no frames; leave --pack out"
        )


def frames_of(base: BaseModel, plan: FederationPlan, pack: bytes | None) -> Frames:
    """Return the frames of a pack's body, or the random ones of the plan's seed without a pack.

    Raises:
        AlignmentImpossible: the pack is of another base model.
        SettingsUnusable: there is a pack, and the plan's adapter has no frames.
    """
    require_frames(plan, pack)
    if plan.adapter.kind == "lora":
        return {}
    return (
        Pack.from_body(pack).frames(base)
        if pack is not None
        else random_frames(base, plan.adapter, plan.training.seed)
    )
