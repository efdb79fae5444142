from __future__ import annotations

from collections.abc import Callable

from coordinator import migrate
from coordinator.database import Database
from tests.postgres_server import PostgresServer
from tests.served import Served, slug


def test_a_database_that_is_down_is_said_and_a_client_is_told_when_to_come_back(
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
