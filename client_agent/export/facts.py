"""The recorded facts of the training of an adapter on disk: federation, plan and held-out scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from client_agent.rounds.checkpoints import Variant, is_finished, kept_side, round_with
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.final_scores import read_final_scores
from client_agent.storage.round_folder import MANIFEST, TRAINED
from schemas.messages.federations import FederationPlan, ScoresPlan
from schemas.messages.rounds import RoundManifest
from schemas.messages.scores import Score, Scores
from schemas.wire.digests import digest_of


@dataclass(frozen=True, slots=True)
class TrainingFacts:
    """The training of an adapter.

    Attributes:
        federation: the federation's id; None if the silo trained alone.
        rounds: the number of rounds that are in the adapter.
        plan: the digest of the federation's plan; None if no signed manifest is on disk.
        scores: the held-out scores in training; None if this variant was not scored.
        scoring: which held-out examples are scored.
        max_length: the most tokens of an example.
    """

    federation: str | None
    rounds: int
    strategy: str
    plan: str | None
    scores: Mapping[str, Score] | None
    scoring: ScoresPlan
    max_length: int


def facts_of_round(home: Path, number: int | None, variant: Variant) -> TrainingFacts:
    """Return the facts of an adapter in the folder of a federation.

    Raises:
        NothingTrained: the folder has no such adapter.
        RoundUnreadable, AdapterUnreadable: a file is damaged.
    """
    folder = round_with(home, number, variant)
    brief = OpenedBrief.read(folder).brief
    scores: Mapping[str, Score] | None = None
    if is_finished(home, number, variant):
        final = read_final_scores(home)
        scores = final.scores if final is not None else None
    elif folder.has(TRAINED):
        scores = _variant_scores(TrainingResult.read(folder.path / TRAINED).scores, variant)
    return TrainingFacts(
        federation=home.name,
        rounds=folder.number - (variant == "served"),
        strategy=brief.strategy.name,
        plan=_signed_plan(home / MANIFEST),
        scores=scores,
        scoring=brief.scores,
        max_length=brief.training.max_length,
    )


def facts_of_file(trained: TrainingResult, plan: FederationPlan, variant: Variant) -> TrainingFacts:
    """Return the facts of an adapter that was trained alone."""
    return TrainingFacts(
        federation=None,
        rounds=plan.rounds.total,
        strategy="trained alone",
        plan=digest_of(plan.model_dump_json().encode()),
        scores=trained.scores.served if kept_side(trained, variant) == "served" else trained.scores.trained,
        scoring=plan.scores,
        max_length=plan.training.max_length,
    )


def _variant_scores(scores: Scores, variant: Variant) -> Mapping[str, Score]:
    if variant == "kept":
        return scores.kept_scores
    return scores.served if variant == "served" else scores.trained


def _signed_plan(file: Path) -> str | None:
    if not file.is_file():
        return None
    return RoundManifest.model_validate_json(json.dumps(json.loads(file.read_bytes()))).plan
