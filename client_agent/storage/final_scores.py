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


Loss = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class FinalScores(Strict):
    """Scores of the final weights on the test examples, and their loss on the validation examples.

    `validation_loss` is null with fewer than 16 validation examples. `earlier_loss` is that of the model that
    the silo kept in its last round; null = unknown. Both never leave the silo, and neither do `tasks`, the
    scores of each task of the test examples.
    """

    scores: ScoreSet
    validation_loss: Loss | None
    earlier_loss: Loss | None = None
    tasks: TaskScores = Field(default_factory=dict)

    @property
    def are_kept(self) -> bool:
        """Whether the silo keeps the final weights: unless they are worse on its validation examples."""
        if self.validation_loss is None or self.earlier_loss is None:
            return True
        return self.validation_loss <= self.earlier_loss

    @property
    def choice(self) -> str:
        """Return which model the silo keeps and why, as one sentence without its full stop."""
        if self.validation_loss is None or self.earlier_loss is None:
            return "the final weights are kept: there are too few validation examples to compare them"
        losses = (
            f"validation loss {self.validation_loss:.3f}, of the last round's model {self.earlier_loss:.3f}"
        )
        if self.are_kept:
            return f"the final weights are kept ({losses})"
        return f"the model of the last round is kept, the final weights are worse ({losses})"


def read_final_scores(home: Path) -> FinalScores | None:
    """Return the scores in the folder of a federation; None before its end."""
    file = home / FINAL_SCORES
    return FinalScores.model_validate_json(file.read_bytes()) if file.is_file() else None
