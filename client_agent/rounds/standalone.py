"""Standalone training without a federation, in the plan's rounds and steps: the local baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from client_agent.adapters.frames import Frames, random_frames
from client_agent.adapters.inject import inject
from client_agent.adapters.provenance import origin_of
from client_agent.alignment.pack import Pack
from client_agent.errors import SettingsUnusable
from client_agent.model.loading import BaseModel
from client_agent.rounds.train import Trained, learning_rate, train_locally, zeros_like
from client_agent.storage.rate_store import RateStore
from client_agent.training.silo import Silo
from schemas.messages.federations import FederationPlan


def train_alone(
    silo: Silo, plan: FederationPlan, pack: bytes | None, stop: Callable[[], bool], rates: RateStore
) -> Iterator[Trained]:
    """Yield the result of every round of a plan; every round continues from the trained adapter.

    Args:
        pack: the alignment pack with the frames.
        rates: where a searched learning rate is kept.

    Raises:
        Stopped: `stop` returned true.
        AlignmentImpossible, SettingsUnusable: see `frames_of`.
    """
    earlier: Trained | None = None
    frames = frames_of(silo.base, plan, pack)
    origin = origin_of(silo.base, plan.adapter, frames, gated=False, seed=plan.training.seed)
    with inject(silo.base, plan.adapter, frames, gated=False, seed=plan.training.seed) as adapter:
        rate = learning_rate(silo, adapter, plan.training, origin, rates, stop)
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
            )
            yield earlier


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
