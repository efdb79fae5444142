"""Statements and transactions of a request in a small round."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event

from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import deliver, join, plan, put, running, scored, update_body, url, values

# By request: statements and transactions. What is said on SQLite's own connection is not counted.
MOST = {
    # PostgreSQL has one statement more where a nonce is stored: the clock of its batch.
    "sqlite": {"current": (4, 2), "join": (15, 4), "weights": (7, 4), "update": (14, 4), "scores": (8, 3)},
    "postgres": {"current": (5, 2), "join": (16, 4), "weights": (8, 4), "update": (16, 4), "scores": (9, 3)},
}


@dataclass
class StatementCounts:
    """Statements and transactions of requests, without those of the ticker's threads."""

    statements: int = 0
    transactions: int = 0


@contextmanager
def counted() -> Iterator[StatementCounts]:
    counts = StatementCounts()

    def statement(*_: object) -> None:
        counts.statements += not _is_tickers()

    def transaction(_: object) -> None:
        counts.transactions += not _is_tickers()

    def past_sqlalchemy(connection: psycopg.Connection[Any], *arguments: Any, **how: Any) -> Any:
        counts.statements += not _is_tickers()
        return execute(connection, *arguments, **how)

    execute = psycopg.Connection.execute
    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Engine, "begin", transaction)
    psycopg.Connection.execute = past_sqlalchemy  # type: ignore[method-assign, assignment]
    try:
        yield counts
    finally:
        psycopg.Connection.execute = execute  # type: ignore[method-assign]
        event.remove(Engine, "before_cursor_execute", statement)
        event.remove(Engine, "begin", transaction)


def _is_tickers() -> bool:
    return threading.current_thread().name.startswith("ticker-")


@pytest.fixture
def second_round(coordinator: Served) -> list[Silo]:
    """Three clients that have delivered once and may join round 2."""
    _, silos = running(coordinator, 3, **plan(rounds={"min_clients": 3, "total": 3}))
    for silo in silos:
        join(silo, 1)
    for silo in silos:
        deliver(silo, 1, values(1.0))
    for silo in silos:
        answer = silo.http.get(url(silo, 1).replace("/1", "/current"), headers={"Prefer": "wait=20"})
        assert answer.json()["round"] == 2
    return silos


def test_requests_of_a_round_keep_their_statement_budget(second_round: list[Silo], backend: str) -> None:
    first, *others = second_round
    with counted() as current:
        assert first.http.get(url(first, 2).replace("/2", "/current")).status_code == 200
    with counted() as joined:
        base = join(first, 2)
    with counted() as weights:
        assert first.http.get(url(first, 2, "/weights")).status_code == 200
    for silo in others:
        join(silo, 2)
    with counted() as update:
        assert put(first, 2, update_body(first, 2, base, values(2.0))).status_code == 201
    with counted() as scores:
        assert first.http.put(url(first, 2, "/scores"), json=scored({"loss": 0.7})).status_code == 204
    requests = {"current": current, "join": joined, "weights": weights, "update": update, "scores": scores}
    for name, counts in requests.items():
        most = MOST[backend][name]
        assert (counts.statements <= most[0], counts.transactions <= most[1]) == (True, True), (name, counts)
