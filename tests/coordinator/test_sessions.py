"""A transaction of a whole route, among many that are short."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import httpx
from fastapi import FastAPI

from coordinator import payloads
from coordinator.database import Database
from coordinator.sessions import Writing

REQUESTS = 120  # three times as many as there are threads for them


def test_a_route_that_writes_gets_on_among_more_writers_than_there_are_threads(
    fresh_database: Callable[[str], str],
) -> None:
    database = Database(fresh_database("sqlite"))
    app = FastAPI()
    app.state.database = database

    @app.post("/long")
    def long(session: Writing) -> int:
        return payloads.store_bytes(session, b"long")[0]

    @app.post("/short/{which}")
    def short(which: int) -> int:
        with database.write() as session:
            return payloads.store_bytes(session, b"short %d" % which)[0]

    async def all_at_once() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://tessera", timeout=60) as client:
            paths = [f"/short/{i}" for i in range(REQUESTS)]
            paths[REQUESTS // 6] = "/long"
            return await asyncio.gather(*(client.post(path) for path in paths))

    answers = asyncio.run(all_at_once())
    assert Counter(answer.status_code for answer in answers) == {200: REQUESTS}
    assert len({answer.json() for answer in answers}) == REQUESTS
    database.close()
