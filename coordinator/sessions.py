"""What a route is handed: the database, a session of one transaction, metrics, keys. Knows no table.

`Reading` and `Writing` end before the reply leaves (`scope="function"`): a commit that fails is an error the
caller sees, and no transaction is open while bytes travel. A parameter that reads a body must stand before
them in a route's signature.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from coordinator.database import Database
from coordinator.metrics import Metrics
from coordinator.server_key import ServerKey
from coordinator.settings import Settings


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
"""The service's database, for routes with more than one transaction."""

TheMetrics = Annotated[Metrics, Depends(_metrics)]
"""The counters of this process."""

TheSettings = Annotated[Settings, Depends(_settings)]
"""How this process was configured."""


TheServerKey = Annotated[ServerKey, Depends(_server_key)]
"""What this coordinator signs with."""


def _reading(database: TheDatabase) -> Iterator[Session]:
    with database.read() as session:
        yield session


def _writing(database: TheDatabase) -> Iterator[Session]:
    with database.write() as session:
        yield session


Reading = Annotated[Session, Depends(_reading, scope="function")]
"""A session that looks at one consistent state; nothing written in it stays."""

Writing = Annotated[Session, Depends(_writing, scope="function")]
"""A session whose transaction is committed before the reply leaves, and rolled back when the route raises."""
