"""Train in a silo without any federation: what a client would reach by itself, in the plan's own steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from client_agent.adapters.frames import Frames, random_frames
from client_agent.adapters.inject import inject
from client_agent.adapters.provenance import origin_of
from client_agent.alignment.pack import Pack
from client_agent.errors import SettingsUnusable
from client_agent.model.loading import BaseModel
from client_agent.rounds.train import Trained, train_locally, zeros_like
from client_agent.training.silo import Silo
from schemas.messages.federations import FederationPlan


def train_alone(
    silo: Silo, plan: FederationPlan, pack: bytes | None, stop: Callable[[], bool]
) -> Iterator[Trained]:
    """Train for the plan's rounds, one result per round; `pack` is the alignment pack whose frames to use.

    Raises:
        Stopped: `stop` said so.
        AlignmentImpossible, SettingsUnusable: as `frames_of` says.
    """
    earlier: Trained | None = None
    frames = frames_of(silo.base, plan, pack)
    origin = origin_of(silo.base, plan.adapter, frames, gated=False, seed=plan.training.seed)
    with inject(silo.base, plan.adapter, frames, gated=False, seed=plan.training.seed) as adapter:
        for number in range(1, plan.rounds.total + 1):
            earlier = train_locally(
                silo,
                adapter,
                plan.training,
                origin=origin,
                round_number=number,
                start=earlier.adapter if earlier is not None else zeros_like(adapter),
                earlier=earlier,
                stop=stop,
                title=f"round {number}",
            )
            yield earlier


def require_frames(plan: FederationPlan, pack: bytes | None) -> None:
    """Make sure that a pack has something to do.

    Raises:
        SettingsUnusable: there is one, and the plan's adapter has no frames.
    """
    if pack is not None and plan.adapter.kind == "lora":
        raise SettingsUnusable("--pack: the plan trains an ordinary LoRA, which has no frames; leave it out")


def frames_of(base: BaseModel, plan: FederationPlan, pack: bytes | None) -> Frames:
    """Give the frames of a pack's body, or without one those that the plan's seed draws.

    Raises:
        AlignmentImpossible: the pack is not one of this base model.
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
