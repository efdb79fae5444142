"""The programs that the aggregation benchmark compares; each is run in a process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from sqlalchemy import func, select

from benchmarks.closed_round import close_round, layout_of, states
from benchmarks.memory import MIB, peak_rss_mib
from coordinator.aggregation import job, store
from coordinator.aggregation.combining import read_blocks
from coordinator.aggregation.guard import guard_weights
from coordinator.aggregation.output_writer import Receiver
from coordinator.aggregation.weighting import products
from coordinator.db import migrate
from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import RelevanceRow
from coordinator.federations.store import federation, plan_of
from coordinator.rounds import base_weights
from coordinator.rounds import store as rounds
from coordinator.storage import payloads
from coordinator.storage.staging import Staging
from coordinator.strategies.base import Cohort
from coordinator.strategies.capabilities import Caps
from coordinator.strategies.opening import open_plan
from schemas.maths.adapter import size

_LEASE_SECONDS = 3600.0
_SAMPLE = 1000


class ProgramFailed(Exception):
    """A measured program did not do its work."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the arrays of one size are: in a database, and as files in a folder."""

    url: str
    folder: Path
    clients: int
    values: int
    block_mib: int


def prepare(place: Place) -> None:
    """Write the states into the database, and into files."""
    layout = layout_of(place.values)
    drawn = states(place.clients, layout)
    for i, state in enumerate(drawn):
        state.tofile(place.folder / f"state-{i}")
    database = Database(place.url)
    migrate.upgrade(database)
    close_round(database, layout, list(drawn))
    database.close()


def _tessera(place: Place) -> dict[str, Any]:
    """Aggregate the round as the coordinator does: from claimed to published."""
    database = Database(place.url)
    claim = job.claim_due(database, _LEASE_SECONDS)
    if claim is None:
        raise ProgramFailed("there is no round to aggregate")
    with _measured() as cost:
        job.aggregate(database, claim, block_bytes=place.block_mib * MIB, between=lambda: None)
    with database.read() as session:
        client = f"{claim.federation_id}-{place.clients - 1:04}"
        row = base_weights.newest(session, client)
        if row is None or row.payload_id is None:
            raise ProgramFailed("nothing was published")
        end = row.begin + 4 * size(layout_of(place.values))
        tail = payloads.read(session, row.payload_id, end - 4 * _SAMPLE, end)
    return cost | {"sample": np.frombuffer(tail, "<f4")}


def _tessera_unwritten(place: Place) -> dict[str, Any]:
    """Do the same without writing the new bodies: read, weigh, multiply."""
    database = Database(place.url)
    with database.read() as session:
        ((federation_id, number),) = rounds.awaiting_worker(session, database_time(session))
        opened = open_plan(plan_of(federation(session, federation_id)))
    with _measured() as cost:
        with database.read() as session:
            everyone = store.established(session, federation_id, opened, number)
        cohort = Cohort([item.facts for item in everyone], opened.plan.rounds.staleness_decay)
        weighing = opened.strategy.weigh(cohort)
        stored = {item.facts.client: item.state for item in everyone}
        receivers = [Receiver(client, state.layout, b"") for client, state in stored.items()]
        for columns in read_blocks(database, weighing, stored, receivers, block_bytes=place.block_mib * MIB):
            columns.product()
    return cost


def _agreement(place: Place) -> dict[str, Any]:
    """Do the additional work of the guard: read all states again, and compute all their inner products."""
    database = Database(place.url)
    with database.read() as session:
        ((federation_id, number),) = rounds.awaiting_worker(session, database_time(session))
        opened = open_plan(plan_of(federation(session, federation_id)))
        everyone = store.established(session, federation_id, opened, number)
    cohort = Cohort([item.facts for item in everyone], opened.plan.rounds.staleness_decay)
    requested = opened.strategy.weigh(cohort)
    states = {item.facts.client: item.state for item in everyone}
    with _measured() as cost:
        staging = Staging(database, lambda: None, place.block_mib * MIB)
        result = products(staging, requested, states, states.keys(), opened.plan.training.seed)
        guard_weights(requested, result, Caps(peer=0.2, peers=0.7, strict=False))
    return cost


def _product(place: Place) -> dict[str, Any]:
    """Multiply arrays in memory, into an array that is already allocated."""
    u = states(place.clients, layout_of(place.values))  # (N, D)
    w = _weights(place)
    g = np.zeros_like(u)
    with _measured() as cost:
        np.matmul(w, u, out=g)
    return cost | {"sample": g[-1, -_SAMPLE:].copy()}


def _files(place: Place) -> dict[str, Any]:
    """Read files, multiply, write files as durably as a database does."""
    w = _weights(place)
    with _measured() as cost:
        u = np.stack([np.fromfile(place.folder / f"state-{i}", np.float32) for i in range(place.clients)])
        g = w @ u
        for i, row in enumerate(g):
            with (place.folder / f"mixed-{i}").open("wb") as file:
                file.write(row.data)
                file.flush()
                os.fsync(file.fileno())
    return cost


def _weights(place: Place) -> NDArray[np.float32]:
    """Read the coordinator's weights (N, N), so that all programs compute the same product."""
    database = Database(place.url)
    with database.read() as session:
        newest = session.scalars(select(func.max(RelevanceRow.round_id))).one()
        rows = session.scalars(
            select(RelevanceRow.relevance)
            .where(RelevanceRow.round_id == newest)
            .order_by(RelevanceRow.ordinal)
        )
        return np.stack([np.frombuffer(row, "<f8") for row in rows]).astype(np.float32)


PROGRAMS: dict[str, Callable[[Place], dict[str, Any]]] = {
    "tessera_unwritten": _tessera_unwritten,
    "agreement": _agreement,
    "tessera": _tessera,
    "product": _product,
    "files": _files,
}


@contextmanager
def _measured() -> Iterator[dict[str, Any]]:
    """Record seconds, processor seconds and memory (MiB) of a block."""
    cost = {"idle_rss_mib": psutil.Process().memory_info().rss / MIB}
    began, used = time.perf_counter(), time.process_time()
    yield cost
    cost["seconds"] = time.perf_counter() - began
    cost["cpu_seconds"] = time.process_time() - used
    cost["peak_rss_mib"] = peak_rss_mib()
