"""The start of workers on any node of a Ray cluster."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from client_agent.model.loading import base_model_slug
from client_agent.training.data import SiloData
from client_agent.transport.admin_client import Operator
from studies.code_fingerprint import code_of_runs
from studies.shared_files import SharedFiles
from studies.study import Study
from studies.worker import models_in
from studies.worker_context import WorkerContext

Draw = Mapping[str, SiloData]
"""The examples of every silo for one seed."""


@dataclass(frozen=True, slots=True)
class RaySetup:
    """The needs of a worker on any node: texts and the identity of code and models, but no file of this node.

    `host` is the coordinator's address, `anchors` the content of the study's file of anchor texts.
    `url` and `token` are an operator's access to the coordinator. `slugs` has the base models that
    the comparison began with. `gpus` is the share of a GPU of a worker that trains, `silo_workers` how many
    train the silos of a run; 0 = the worker of the run does.
    """

    study: Study
    host: str
    run: str
    code: str
    slugs: dict[str, str]
    anchors: bytes | None = None
    url: str | None = None
    token: str = ""
    gpus: float = 0.0
    silo_workers: int = 0

    def folder(self) -> Path:
        """The working folder on a node."""
        return Path(tempfile.gettempdir()) / f"tessera-compare-{self.run}"

    @property
    def is_current(self) -> bool:
        """Whether the code and base models of this node are those that the comparison began with."""
        return self.code == code_of_runs() and self.slugs == slugs_of(self.study)

    @property
    def trainer_options(self) -> dict[str, Any]:
        """The options of a worker that trains. Ray restarts none."""
        return {"num_cpus": 1, "num_gpus": self.gpus, "max_restarts": 0}

    @property
    def worker_options(self) -> dict[str, Any]:
        """The options of the worker of a run, which only waits if others train its silos."""
        return {"num_cpus": 0, "max_restarts": 0} if self.silo_workers else self.trainer_options


def opened_context(setup: RaySetup, name: str, files: SharedFiles, *, trains: bool) -> WorkerContext:
    """Prepare this process of a worker; `trains`: it takes its share of a GPU."""
    for variable in [name for name in os.environ if name.startswith("TESSERA_")]:
        # Settings of an agent or a coordinator on this node are not those of the study.
        del os.environ[variable]
    os.environ |= {"NO_PROXY": setup.host, "no_proxy": setup.host}
    # One core per worker; more threads would disturb the others, and sums would depend on their number.
    torch.set_num_threads(1)
    if trains and 0 < setup.gpus < 1:
        # Fail in the worker that takes too much, and not in its neighbour.
        torch.cuda.set_per_process_memory_fraction(setup.gpus)
    out = setup.folder()
    out.mkdir(mode=0o700, exist_ok=True)
    study = setup.study
    if setup.anchors is not None:
        anchors = out / f"anchors-{name}.json"
        anchors.write_bytes(setup.anchors)
        study = study.model_copy(update={"anchors": anchors})
    operator = Operator(setup.url, setup.token) if setup.url is not None else None
    return WorkerContext(study, out, operator, models_in(out), files)


def slugs_of(study: Study) -> dict[str, str]:
    """Return the slug of every base model of a study."""
    return {model: base_model_slug(model) for model in study.models}
