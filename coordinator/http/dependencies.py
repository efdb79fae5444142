"""What a route is handed: the database, metrics, settings, keys. Knows no table.

No route is handed a session. A route begins and ends its transactions itself, within one thread: between the
steps of a request (what it depends on, the route, checking its answer) FastAPI gives its thread back, and a
transaction that waits for another one keeps what those that have all the threads are waiting for.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from coordinator.db.engine import Database
from coordinator.observability.metrics import Metrics
from coordinator.settings import Settings
from coordinator.storage.server_key import ServerKey


def database_of(request: Request) -> Database:
    """Give the service's database."""
    database: Database = request.app.state.database
    return database


def settings_of(request: Request) -> Settings:
    """Give how this process was configured."""
    settings: Settings = request.app.state.settings
    return settings


def metrics_of(request: Request) -> Metrics:
    """Give the counters of this process."""
    metrics: Metrics = request.app.state.metrics
    return metrics


def server_key_of(request: Request) -> ServerKey:
    """Give what this coordinator signs with."""
    key: ServerKey = request.app.state.server_key
    return key


# A look at memory: as plain functions these would cost every request a change of threads each.
async def _database(request: Request) -> Database:
    return database_of(request)


async def _metrics(request: Request) -> Metrics:
    return metrics_of(request)


async def _settings(request: Request) -> Settings:
    return settings_of(request)


async def _server_key(request: Request) -> ServerKey:
    return server_key_of(request)


TheDatabase = Annotated[Database, Depends(_database)]
"""The service's database."""

TheMetrics = Annotated[Metrics, Depends(_metrics)]
"""The counters of this process."""

TheSettings = Annotated[Settings, Depends(_settings)]
"""How this process was configured."""


TheServerKey = Annotated[ServerKey, Depends(_server_key)]
"""What this coordinator signs with."""
