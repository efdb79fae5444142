"""What the process that compares and its workers say to each other: JSON lines over pipes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from client_agent.simulation.study import Study
from schemas.messages.base import Strict


class Setup(Strict):
    """The first line to a worker. `url` and `token` let it in at the coordinator as an operator.

    When the comparing process is gone, the worker ends the `coordinator` process too.
    """

    study: Study
    out: Path
    url: str | None = None
    token: str = ""
    coordinator: int | None = None


class Order(Strict):
    """Every further line to a worker: run this method with this seed; `digest` is what the run must have."""

    method: str
    seed: int
    digest: str


class Progress(Strict):
    """How far the run is: finished rounds of all, and what is being done."""

    kind: Literal["progress"] = "progress"
    rounds: int
    total: int
    doing: str


class Done(Strict):
    """The run's result is on disk."""

    kind: Literal["done"] = "done"


class Failed(Strict):
    """The run failed; the worker goes on."""

    kind: Literal["failed"] = "failed"
    reason: str


News = Annotated[Progress | Done | Failed, Field(discriminator="kind")]
news: TypeAdapter[Progress | Done | Failed] = TypeAdapter(News)
