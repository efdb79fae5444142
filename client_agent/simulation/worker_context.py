"""The shared state of a worker's runs: the study, its models, an operator's connection, files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from client_agent.simulation.admin_client import Operator
from client_agent.simulation.clients import SharedModels
from client_agent.simulation.partition import draw_examples
from client_agent.simulation.shared_files import FolderFiles, SharedFiles
from client_agent.simulation.study import Study
from client_agent.training.data import SiloData

if TYPE_CHECKING:
    from client_agent.simulation.crew import Crew
    from client_agent.simulation.results import Cell


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
