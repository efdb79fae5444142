from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from fastapi import FastAPI, Request
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from coordinator.db import migrate
from coordinator.db.engine import Database
from coordinator.http import problems
from coordinator.storage import payloads
from tests.scene.coordinator import Served, slug
from tests.scene.postgres_server import PostgresServer


@pytest.mark.slow
def test_an_unavailable_database_is_answered_503(
    serve: Callable[..., Served],
) -> None:
    with PostgresServer() as server:
        server.create("short_lived")
        url = server.url("short_lived")
        database = Database(url)
        migrate.upgrade(database)
        database.close()
        served = serve(url, tick_seconds=3600)
        assert served.admin.get("/readyz").status_code == 200
    for path in ("/readyz", "/v1/federations", "/v1/hello"):
        refused = served.admin.get(path)
        assert (refused.status_code, slug(refused)) == (503, "unavailable")
        assert int(refused.headers["retry-after"]) > 0
    assert served.admin.get("/healthz").status_code == 200


def _in_sql(session: Session) -> None:
    session.execute(text("CREATE TABLE more AS SELECT zeroblob(1000000) AS bytes"))


def _past_sqlalchemy(session: Session) -> None:
    payloads.store_bytes(session, bytes(1_000_000))


@pytest.mark.parametrize("write", [_in_sql, _past_sqlalchemy])
def test_a_full_database_is_answered_507(
    fresh_database: Callable[[str], str], write: Callable[[Session], None]
) -> None:
    database = Database(fresh_database("sqlite"))

    def fill() -> None:
        with database.write() as session:
            pages = session.scalar(text("PRAGMA page_count"))
            session.execute(text(f"PRAGMA max_page_count = {pages}"))
            write(session)

    with pytest.raises(OperationalError) as full:
        fill()
    database.close()
    app = FastAPI()
    problems.install(app)
    answers = app.exception_handlers[OperationalError]
    answer = asyncio.run(answers(Request({"type": "http"}), full.value))  # type: ignore[arg-type, misc]
    assert answer.status_code == 507
    assert int(answer.headers["retry-after"]) >= 45
