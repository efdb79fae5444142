"""Options of trackers, the same for coordinator, agent and studies: names, and places of runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from schemas.trackers.mlflow_tracker import MlflowTracker
from schemas.trackers.tensorboard_tracker import TensorboardTracker
from schemas.trackers.tracker import TrackedRun, Tracker
from schemas.trackers.trackers import Trackers
from schemas.trackers.trackio_tracker import TrackioTracker
from schemas.trackers.wandb_tracker import WandbTracker

TrackerName = Literal["tensorboard", "mlflow", "wandb", "trackio"]
"""The trackers; each is also the name of the extra that installs its library."""

_STORE = re.compile(r"(https?|sqlite|postgresql|mysql)(\+\w+)?://")


class TrackerMissing(Exception):
    """The library of a tracker is not installed; the message names the extra."""


@dataclass(frozen=True, slots=True)
class TrackerOptions:
    """The places of runs: files below `folder`, unless an address names a server.

    Attributes:
        mlflow_uri: an MLflow server or a database; None = a SQLite file in `folder`.
        wandb_url: a W&B server; None = files in `folder`, and no connection to anybody.
    """

    report_to: tuple[TrackerName, ...]
    folder: Path
    mlflow_uri: str | None = None
    wandb_url: str | None = None

    def require_installed(self) -> None:
        """Raise TrackerMissing if a library is not installed."""
        for name in self.report_to:
            if any(find_spec(module) is None for module in _MODULES[name]):
                raise TrackerMissing(
                    f"{name} is not installed; in a clone of Tessera: pip install '.[{name}]'"
                )

    def open(self, run: TrackedRun) -> Trackers:
        """Return the trackers of a run; none is opened before `begin` or its first value."""
        # Made in the thread of each tracker, where loading a library delays nobody.
        makers: Mapping[TrackerName, Callable[[], Tracker]] = {
            "tensorboard": lambda: TensorboardTracker(self.folder / "tensorboard"),
            "mlflow": lambda: MlflowTracker(self.folder, self.mlflow_uri),
            "wandb": lambda: WandbTracker(self.folder, self.wandb_url),
            "trackio": lambda: TrackioTracker(self.folder / "trackio"),
        }
        return Trackers.of(run, {name: makers[name] for name in self.report_to})


def listed_trackers(report_to: str, folder: str, mlflow_uri: str, wandb_url: str) -> TrackerOptions:
    """Return the options that are text: names with commas between them; empty = none.

    Raises:
        ValueError: a name is no tracker, or see `require_addresses`.
    """
    by_name: dict[str, TrackerName] = {name: name for name in _MODULES}
    names = [name.strip() for name in report_to.split(",") if name.strip()]
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no tracker; write {', '.join(by_name)}")
    options = TrackerOptions(
        tuple(by_name[name] for name in names), Path(folder), mlflow_uri or None, wandb_url or None
    )
    require_addresses(options.report_to, options.mlflow_uri, options.wandb_url)
    return options


def require_addresses(
    report_to: tuple[TrackerName, ...], mlflow_uri: str | None, wandb_url: str | None
) -> None:
    """Check the options against each other.

    Raises:
        ValueError: a tracker is named twice, an address has no tracker, or is not one.
    """
    if len(set(report_to)) != len(report_to):
        raise ValueError("report_to names a tracker twice")
    for option, address, name in (("mlflow_uri", mlflow_uri, "mlflow"), ("wandb_url", wandb_url, "wandb")):
        if address is not None and name not in report_to:
            raise ValueError(f'{option} is set, but report_to lacks "{name}"; add it, or remove {option}')
    if mlflow_uri is not None and not _STORE.match(mlflow_uri):
        raise ValueError(
            f"mlflow_uri: {mlflow_uri} is neither a server, like https://mlflow.example.org, nor a database, "
            "like sqlite:///runs.db"
        )
    if wandb_url is not None and not wandb_url.startswith(("https://", "http://")):
        raise ValueError(f"wandb_url: {wandb_url} is not an address like https://api.wandb.ai")


_MODULES: Final[Mapping[TrackerName, tuple[str, ...]]] = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
}
