"""Record values in Trackio's SQLite files, in the folder of the settings and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from schemas.trackers.tracker import Axis, TrackedRun

# Variables with which the library would read and write copies on a hub.
_REMOTE_COPIES = ("TRACKIO_BUCKET_ID", "TRACKIO_DATASET_ID")


class TrackioTracker:
    """A file per project: `TRACKIO_DIR=<folder> trackio show`. Steps and rounds share its x-axis.

    `trackio.init` would print to the terminal, ask the hub for the user's name and record the machine's load;
    values therefore go to the library's storage.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._run: TrackedRun | None = None

    def start(self, run: TrackedRun) -> None:
        """Load the library, which reads its folder at the import.

        Raises:
            RuntimeError: it was imported before, with another folder.
        """
        os.environ["TRACKIO_DIR"] = str(self._folder)
        for name in _REMOTE_COPIES:
            os.environ.pop(name, None)
        from trackio.utils import TRACKIO_DIR

        if self._folder != TRACKIO_DIR:
            raise RuntimeError(f"this process has loaded trackio with folder {TRACKIO_DIR}; start another")
        self._run = run

    def log(self, axis: Axis, place: int, values: Mapping[str, float]) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        assert self._run is not None
        SQLiteStorage.bulk_log(
            project=self._run.path.partition("/")[0],
            run=self._run.name,
            metrics_list=[dict(values)],
            steps=[place],
            config=dict(self._run.facts),
            run_id=self._run.id,
        )

    def finish(self) -> None:
        """Do nothing: every value is in the file when `log` returns."""
