"""Scores as files of the agent: those of a federation's final weights, and of the state it began with.

Needs no torch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from client_agent.agent_entries import START_SCORES
from client_agent.storage.files import write_durably
from client_agent.storage.round_folder import FINAL_SCORES
from schemas.messages.base import Strict
from schemas.messages.scores import ScoreSet

TaskScores = dict[str, ScoreSet]
"""The scores of each task."""


Loss = Annotated[float, Field(ge=0, allow_inf_nan=False)]
log = logging.getLogger(__name__)


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


class StartScores(Strict):
    """Scores on the test examples, and the loss on the validation examples, null with fewer than 16 of them.

    Before the first round the state is the bare base model, under every plan of the same adapter. A
    federation and `tessera agent train` with the same folder score it once.

    `fingerprint` is the digest of everything that the scores depend on; `tasks` has the scores of each task.
    """

    fingerprint: str
    scores: ScoreSet
    validation_loss: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    tasks: TaskScores = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StartScoreStore:
    """The newest scores of a start, in one folder."""

    folder: Path

    def read(self, fingerprint: str) -> StartScores | None:
        """Return the stored scores if they are of this fingerprint; None without a file, or a damaged one."""
        file = self.folder / START_SCORES
        try:
            stored = StartScores.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            log.warning("scores: %s is damaged and ignored (%s)", file, type(error).__name__)
            return None
        return stored if stored.fingerprint == fingerprint else None

    def write(self, scores: StartScores) -> None:
        write_durably(self.folder / START_SCORES, scores.model_dump_json().encode())
