"""FastAPI dependencies on the objects of the process. Routes open and close their transactions
themselves, within one thread: a session as a dependency could hold a transaction while it waits for a
thread.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from coordinator.db.engine import Database
from coordinator.observability.metrics import Metrics
from coordinator.settings import Settings
from coordinator.storage.server_key import ServerKey


def database_of(request: Request) -> Database:
    database: Database = request.app.state.database
    return database


def settings_of(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def metrics_of(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


def server_key_of(request: Request) -> ServerKey:
    key: ServerKey = request.app.state.server_key
    return key


# Async: as plain functions, each would cost every request a switch of threads.
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
"""The metrics of this process."""

TheSettings = Annotated[Settings, Depends(_settings)]
"""The settings of this process."""


TheServerKey = Annotated[ServerKey, Depends(_server_key)]
"""The signing key of this coordinator."""
