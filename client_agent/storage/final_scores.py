"""The scores of a federation's final weights, as a file beside the round folders. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from client_agent.storage.round_folder import FINAL_SCORES
from schemas.messages.base import Strict
from schemas.messages.scores import ScoreSet


class FinalScores(Strict):
    """Scores of the final weights on the test examples, and their loss on the validation examples.

    `validation_loss` is null with fewer than 16 validation examples; it never leaves the silo.
    """

    scores: ScoreSet
    validation_loss: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None


def read_final_scores(home: Path) -> FinalScores | None:
    """Return the scores in the folder of a federation; None before its end."""
    file = home / FINAL_SCORES
    return FinalScores.model_validate_json(file.read_bytes()) if file.is_file() else None
