"""The records of a study's trackers: one run per method and seed, with a prefix for each client."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.messages.scores import LOSS
from schemas.trackers.tracker import Facts, TrackedRun
from schemas.trackers.trackers import Trackers
from studies.results import Cell, CellResult, ClientRound
from studies.study import Study


@contextmanager
def trackers_of(study: Study, out: Path, cell: Cell) -> Iterator[Trackers]:
    """Open the trackers of a run; an interrupted run starts again as a new run."""
    facts: Facts = {"method": cell.method, "seed": cell.seed, "strategy": cell.plan.strategy.name}
    run = TrackedRun(out.name, cell.label, f"{cell.digest[:16]}-{secrets.token_hex(4)}", facts)
    with study.trackers(out).open(run) as trackers:
        trackers.begin()
        yield trackers


def track_result(trackers: Trackers, result: CellResult) -> None:
    """Record the means over clients of every round's losses, and the bytes of all of them."""
    rounds: dict[int, list[ClientRound]] = {}
    for client in result.clients:
        for of_client in client.rounds:
            rounds.setdefault(of_client.round, []).append(of_client)
    for number, of_clients in sorted(rounds.items()):
        values = {
            "mean/served/loss": _mean([entry.scores.served[LOSS].value for entry in of_clients]),
            "mean/trained/loss": _mean([entry.scores.trained[LOSS].value for entry in of_clients]),
            "bytes/up": float(sum(entry.bytes_up for entry in of_clients)),
            "bytes/down": float(sum(entry.bytes_down for entry in of_clients)),
        }
        trackers.log("round", number, values)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
