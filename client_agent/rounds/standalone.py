"""Standalone training without a federation, in the plan's rounds and steps: the local baseline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from client_agent.adapters.frames import Frames, random_frames
from client_agent.adapters.provenance import origin_of
from client_agent.alignment.pack import Pack
from client_agent.errors import SettingsUnusable
from client_agent.model.loading import BaseModel
from client_agent.rounds.adapter_in_place import prepare, put_in_place
from client_agent.rounds.delivery import track_scores
from client_agent.rounds.part import Part, Setting
from client_agent.rounds.plan import require_trainer_suits
from client_agent.rounds.planned_parts import with_planned
from client_agent.rounds.progress_report import step_tracking
from client_agent.rounds.train import LocalTraining, learning_rate, train_locally, zeros_like
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.rate_store import RateStore
from client_agent.training.silo import Silo
from schemas.messages.alignment import Anchor
from schemas.messages.federations import FederationPlan
from schemas.trackers.trackers import NO_TRACKERS, Trackers

log = logging.getLogger(__name__)


def train_alone(
    silo: Silo,
    plan: FederationPlan,
    pack: bytes | None,
    stop: Callable[[], bool],
    rates: RateStore,
    folder: Path,
    parts: Sequence[Part] = (),
    trackers: Trackers = NO_TRACKERS,
    texts: Sequence[Anchor] = (),
) -> Iterator[TrainingResult]:
    """Yield the result of every round of a plan; every round continues from the trained adapter.

    Args:
        pack: the alignment pack with the frames.
        rates: where a searched learning rate is kept.
        folder: where parts keep their files.
        parts: features beside the plan's adapter, such as a bank of experts.
        trackers: record losses and scores.
        texts: public texts, for `training.anchor_pull`.

    Raises:
        Stopped: `stop` returned true.
        AlignmentImpossible, SettingsUnusable: see `frames_of`.
        TrainerUnusable: the silo's trainer does not suit the plan.
        PlanUnusable, NoAnchors: the plan has an `anchor_pull`, which `parts` or the lack of texts rules out.
        LayoutMismatch: see `Part.inject`.
    """
    if plan.privacy.training is not None:
        log.warning("privacy.training of the plan is not used here: of a training alone nothing is sent")
    parts = with_planned(parts, plan.training, texts)
    if silo.trainer is not None:
        require_trainer_suits(silo.trainer, plan.adapter, parts)
    earlier: TrainingResult | None = None
    frames, seed = frames_of(silo.base, plan, pack), plan.training.seed
    for part in parts:
        silo = part.silo(silo)
    setting = Setting(silo, plan.adapter, frames, seed, plan.training.max_length, folder)
    origin = origin_of(silo.base, plan.adapter, frames, gated=False, seed=seed)
    with put_in_place(setting, parts) as adapter:
        # Before `prepare`: a bank that chooses by losses would search a rate for its choice.
        rate = learning_rate(silo, adapter, plan.training, origin, rates, stop)
        prepare(adapter, setting, parts)
        for round_number in range(1, plan.rounds.total + 1):
            training = LocalTraining(
                silo=silo,
                adapter=adapter,
                plan=plan.training,
                scores=plan.scores,
                origin=origin,
                learning_rate=rate,
                round_number=round_number,
                total_rounds=plan.rounds.total,
                # Every round begins where the last one ended, as for a client whose peers send nothing.
                start=earlier.adapter if earlier is not None else zeros_like(adapter),
                earlier=earlier,
                stop=stop,
                parts=parts,
                report=step_tracking(trackers, round_number),
            )
            earlier = train_locally(training)
            track_scores(trackers, round_number, earlier.scores)
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
