"""Artefacts of exported banks of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from client_agent.adapters.base import Adapter
from client_agent.export.artefact import Artefact
from client_agent.export.facts import TrainingFacts
from client_agent.model.loading import BaseModel
from client_agent.rounds.checkpoints import AdapterWithOrigin
from client_agent.training.silo import Silo
from schemas.messages.federations import ScoresPlan

SCORING = ScoresPlan(examples=6, new_tokens=0)

FACTS = TrainingFacts(None, 1, "trained alone", None, None, SCORING, 64)


@dataclass(frozen=True)
class Source:
    """A stored adapter, as `tessera agent export` finds it."""

    make: Callable[[BaseModel], Adapter]

    def attach(self, silo: Silo) -> AbstractContextManager[AdapterWithOrigin]:
        return self._attached(silo)

    @contextmanager
    def _attached(self, silo: Silo) -> Iterator[AdapterWithOrigin]:
        with self.make(silo.base) as adapter:
            yield AdapterWithOrigin(adapter, None)


def artefact(folder: Path) -> Artefact:
    return Artefact("peft", "name", "model", "model", str(folder), chat=False)


def write_no_card(*_: object) -> None:
    """Write no model card."""
