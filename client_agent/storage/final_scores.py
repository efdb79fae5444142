"""The scores of a federation's final weights, as a file beside the round folders. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from client_agent.storage.round_folder import FINAL_SCORES
from schemas.messages.base import Strict
from schemas.messages.scores import ScoreSet

TaskScores = dict[str, ScoreSet]
"""The scores of each task."""


class FinalScores(Strict):
    """Scores of the final weights on the test examples, and their loss on the validation examples.

    `validation_loss` is null with fewer than 16 validation examples. It never leaves the silo, and neither do
    `tasks`, the scores of each task of the test examples.
    """

    scores: ScoreSet
    validation_loss: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    tasks: TaskScores = Field(default_factory=dict)


def read_final_scores(home: Path) -> FinalScores | None:
    """Return the scores in the folder of a federation; None before its end."""
    file = home / FINAL_SCORES
    return FinalScores.model_validate_json(file.read_bytes()) if file.is_file() else None
