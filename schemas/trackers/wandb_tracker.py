"""Record values with W&B: files for `wandb sync`, or the server of the settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.trackers.tracker import Axis, TrackedRun

if TYPE_CHECKING:
    from wandb import Run


class WandbTracker:
    """A project per federation or study and a run per client; without a `url` no connection is opened."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self._folder = folder
        self._url = url
        self._run: Run | None = None
        self._defined: set[str] = set()

    def start(self, run: TrackedRun) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # read at the import; its authors would get reports
        import wandb

        self._folder.mkdir(parents=True, exist_ok=True)
        # Values and nothing else: no output of this process, command line, code, packages or machine.
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            save_code=False,
            silent=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
            **({"base_url": self._url} if self._url is not None else {}),
        )
        self._run = wandb.init(
            project=run.path.partition("/")[0],
            name=run.name,
            id=run.id,
            config=dict(run.facts),
            dir=str(self._folder),
            mode="offline" if self._url is None else "online",
            resume="allow" if self._url is not None else None,
            reinit="create_new",
            settings=settings,
        )

    def log(self, axis: Axis, place: int, values: Mapping[str, float]) -> None:
        assert self._run is not None
        for name in values.keys() - self._defined:  # W&B's own steps only grow; rounds and steps do not
            self._run.define_metric(name, step_metric=axis)
            self._defined.add(name)
        self._run.log({axis: place, **values})

    def finish(self) -> None:
        if self._run is not None:
            self._run.finish()
