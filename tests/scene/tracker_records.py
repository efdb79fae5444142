"""Records of a tracker, read with its own library."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def recorded(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read TensorBoard's files of the one run below a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run_folder,) = {file.parent for file in folder.rglob("events.*")}
    events = EventAccumulator(str(run_folder))
    events.Reload()
    return {
        name: [(event.step, event.tensor_proto.float_val[0]) for event in events.Tensors(name)]
        for name in events.Tags()["tensors"]
    }


def in_new_process(act: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own: trackio has one folder for the life of a process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(act, *arguments).result()


Run = tuple[dict[str, Any], list[dict[str, Any]]]
"""Facts of a run, and its values by step."""


def recorded_by_trackio(folder: Path, project: str) -> dict[str, Run]:
    """Read the runs of a project, by name, with the library's own reader, in a new process."""
    runs: dict[str, Run] = in_new_process(_read_trackio, folder, project)
    return runs


def _read_trackio(folder: Path, project: str) -> dict[str, Run]:
    os.environ["TRACKIO_DIR"] = str(folder)
    from trackio import Api
    from trackio.sqlite_storage import SQLiteStorage

    assert project in SQLiteStorage.get_projects()
    return {
        run.name: (dict(run.config or {}), SQLiteStorage.get_logs(project, run.name))
        for run in Api().runs(project)
    }
