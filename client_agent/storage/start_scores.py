"""The scores of the state that a silo began with, as a file in the agent's folder. Needs no torch.

Before the first round that is the bare base model, under every plan of the same adapter: a federation and
`tessera agent train` with the same folder score it once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from client_agent.agent_entries import START_SCORES
from client_agent.storage.files import write_durably
from client_agent.storage.final_scores import TaskScores
from schemas.messages.base import Strict
from schemas.messages.scores import ScoreSet

log = logging.getLogger(__name__)


class StartScores(Strict):
    """Scores on the test examples, and the loss on the validation examples, null with fewer than 16 of them.

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
