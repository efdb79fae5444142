"""The stored choices of a client among experts, in a file that is never sent.

The file has the seed of the client's draws, the losses on its probe set, and the choice of each round.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from client_agent.agent_entries import EXPERTS as EXPERTS
from client_agent.storage.files import write_durably
from schemas.messages.base import Strict

log = logging.getLogger(__name__)

_SECRET_BYTES = 32
_MOST_LOSSES = 512
_MOST_ROUNDS = 200

_Loss = Annotated[float, Field(ge=0)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Difference = Annotated[float, Field(ge=-1, le=1)]


class Choice(Strict):
    """The choice of a client in a round, by its probe set; responsibilities are by specialist.

    `fit` and `regret` are null without a probe set; `regret` is also null before the first personal model.
    `local` is the loss of the personal model after the round. `probe` is the digest of the scored texts.
    `differences` has what each other specialist would cost, by trained specialist; null without a probe set.
    """

    responsibilities: dict[int, _Share]
    trained: tuple[int, ...]
    exploring: bool
    fit: _Share | None = None
    regret: _Share | None = None
    rejects: bool = False
    local: _Loss | None = None
    probe: str | None = None
    differences: dict[int, dict[int, _Difference]] | None = None


class _MemoryFile(Strict):
    secret: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    losses: dict[str, _Loss] = Field(default_factory=dict)
    rounds: dict[int, Choice] = Field(default_factory=dict)


class ExpertMemory:
    """The choices of one client, read from a file and written after each change of a round.

    Attributes:
        secret: hexadecimal seed of the client's draws, made once.
        losses: losses by digests, as `Prober` fills it.
        rounds: choices by round.
    """

    def __init__(self, file: Path) -> None:
        """Read the file; start with a new seed if it is missing or damaged."""
        self._file = file
        stored = _read(file) or _MemoryFile(secret=secrets.token_hex(_SECRET_BYTES))
        self.secret = stored.secret
        self.losses = dict(stored.losses)
        self.rounds = dict(stored.rounds)

    def local_before(self, round_number: int, probe: str) -> float | None:
        """Return the loss of the last personal model on these texts; None if there is none."""
        choices = (
            self.rounds[number] for number in sorted(self.rounds, reverse=True) if number < round_number
        )
        last = next((choice for choice in choices if choice.local is not None), None)
        # A loss on other texts cannot be compared.
        return last.local if last is not None and last.probe == probe else None

    def record(self, round_number: int, choice: Choice) -> None:
        """Store the choice of a round durably, with the losses so far."""
        self.rounds[round_number] = choice
        # Both are bounded, because the file is written whole in every round.
        self.rounds = dict(sorted(self.rounds.items())[-_MOST_ROUNDS:])
        newest = list(self.losses.items())[-_MOST_LOSSES:]
        self.losses.clear()  # the prober has this dictionary
        self.losses.update(newest)
        stored = _MemoryFile(secret=self.secret, losses=self.losses, rounds=self.rounds)
        write_durably(self._file, stored.model_dump_json().encode())


def _read(file: Path) -> _MemoryFile | None:
    try:
        return _MemoryFile.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        # It makes choices better and repeatable; without it the client can still train.
        log.warning("experts: %s is damaged and ignored (%s)", file, type(error).__name__)
        return None
