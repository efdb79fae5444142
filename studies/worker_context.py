"""The shared state of a worker's runs: the study, its models, an operator's connection, files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from client_agent.training.data import SiloData
from client_agent.transport.admin_client import Operator
from studies.clients import SharedModels
from studies.partition import draw_examples
from studies.shared_files import FolderFiles, SharedFiles
from studies.study import Study

if TYPE_CHECKING:
    from studies.crew import Crew
    from studies.results import Cell


@dataclass(slots=True)
class WorkerContext:
    """Shared state of the runs of one process.

    `out` is the folder of their working files, `shared` has the files of all workers; None = in `out`. `draw`
    returns the examples of every silo for a seed. `spread` opens the workers of a run's silos; None = its
    silos are in this process.
    """

    study: Study
    out: Path
    operator: Operator | None
    models: SharedModels
    shared: SharedFiles | None = None
    draw: Callable[[Study, int], dict[str, SiloData]] = draw_examples
    spread: Callable[[Cell], AbstractContextManager[Crew]] | None = None

    @property
    def files(self) -> SharedFiles:
        return self.shared or FolderFiles(self.out)
