"""Record values in MLflow: a SQLite file, or the server or database of the settings."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.trackers.tracker import Axis, TrackedRun

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

DATABASE = "mlflow.db"
_RUN_ID = "tessera.run"


class MlflowTracker:
    """An experiment per project and a run per client; a restarted client finds its run by a tag."""

    def __init__(self, folder: Path, uri: str | None) -> None:
        self._folder = folder
        self._uri = uri
        self._client: MlflowClient | None = None
        self._run_id = ""

    def start(self, run: TrackedRun) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read at the import; its authors would get reports
        from mlflow.entities import Param, ViewType
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        with self._store() as (uri, artifacts):
            self._client = client = MlflowClient(tracking_uri=uri)
            experiment = client.get_experiment_by_name(run.project)
            experiment_id = (
                experiment.experiment_id
                if experiment is not None
                else client.create_experiment(run.project, artifact_location=artifacts)
            )
        query = f"tags.`{_RUN_ID}` = '{run.id}'"
        earlier = client.search_runs([experiment_id], query, ViewType.ACTIVE_ONLY, max_results=1)
        if earlier:
            self._run_id = earlier[0].info.run_id
            client.update_run(self._run_id, status="RUNNING")
            return
        self._run_id = client.create_run(experiment_id, run_name=run.name, tags={_RUN_ID: run.id}).info.run_id
        client.log_batch(self._run_id, params=[Param(name, str(value)) for name, value in run.facts.items()])

    def log(self, axis: Axis, place: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        assert self._client is not None
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, place) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    @contextmanager
    def _store(self) -> Iterator[tuple[str, str | None]]:
        """Return addresses of values and artifacts; processes make a new file's tables one after another.

        An address of the environment would be another's choice, so one is always passed.
        """
        if self._uri is not None:
            yield self._uri, None
            return
        folder = self._folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{DATABASE}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield f"sqlite:///{folder / DATABASE}", (folder / "mlflow-artifacts").as_uri()

    def finish(self) -> None:
        if self._client is not None and self._run_id:
            self._client.set_terminated(self._run_id)
