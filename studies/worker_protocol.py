"""Messages between the comparing process and its workers: JSON lines over pipes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from schemas.messages.base import Strict
from studies.study import Study


class Setup(Strict):
    """The first line to a worker. `url` and `token` are an operator's access to the coordinator.

    The worker terminates the `coordinator` process when the comparing process ends.
    """

    study: Study
    out: Path
    url: str | None = None
    token: str = ""
    coordinator: int | None = None


class Order(Strict):
    """Every later line to a worker: run a method with a seed; `digest` is the expected digest of the cell.

    `rate` is the learning rate of a run of a fair comparison.
    """

    method: str
    seed: int
    rate: float | None
    digest: str


class Progress(Strict):
    """The number of finished rounds, and the current activity."""

    kind: Literal["progress"] = "progress"
    rounds: int
    total: int
    doing: str


class RunDone(Strict):
    """The run's result is on disk."""

    kind: Literal["done"] = "done"


class RunFailed(Strict):
    """The run failed; the worker continues."""

    kind: Literal["failed"] = "failed"
    reason: str


News = Annotated[Progress | RunDone | RunFailed, Field(discriminator="kind")]
news: TypeAdapter[Progress | RunDone | RunFailed] = TypeAdapter(News)
