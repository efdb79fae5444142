"""The facts of a silo that `tessera agent work` stores for `tessera agent sync`. Needs no torch."""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import ValidationError

from client_agent.agent_entries import PREPARED
from client_agent.storage.files import write_durably
from schemas.messages.base import Strict
from schemas.messages.enrolment import Profile

log = logging.getLogger(__name__)


class SiloFacts(Strict):
    """Facts of a silo's model and data.

    `max_length` is the plan's `training.max_length` for which all examples were tokenised; null before there
    is a plan. `records` is the number of different training examples.
    """

    profile: Profile
    max_length: int | None
    records: int


def read_silo_facts(folder: Path) -> SiloFacts | None:
    """Read the facts in the agent's folder; None without a file, or if it is damaged."""
    file = folder / PREPARED
    try:
        return SiloFacts.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.warning("%s is damaged and ignored (%s)", file, type(error).__name__)
        return None


def write_silo_facts(folder: Path, prepared: SiloFacts) -> None:
    write_durably(folder / PREPARED, prepared.model_dump_json(indent=1).encode())
