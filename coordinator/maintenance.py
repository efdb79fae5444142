"""Move and check the tensors of the database at TESSERA_DATABASE_URL beside the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator.db import migrate as migrations
from coordinator.db.engine import Database
from coordinator.errors import SettingsUnusable
from coordinator.server import load_settings, opened_database
from coordinator.storage import payload_moves
from coordinator.storage.object_store import require_url


def move_payloads(to: str, *, progress: Callable[[int], None]) -> None:
    """Move all payloads to rows or to a store; `progress` is called with the bytes of each.

    Raises:
        SettingsUnusable: the database cannot be used, or the URL is not that of a store.
        Unavailable: the store does not answer.
        NotOwner: another database claims the store.
        LookupError: a payload is damaged.
    """
    if to != payload_moves.ROWS:
        require_url(to)
    with _current_database() as database:
        if to != payload_moves.ROWS:
            payload_moves.require(database, to)
        # All payloads go back to rows, whatever their size.
        smallest = 0 if to == payload_moves.ROWS else payload_moves.SMALLEST
        for size in payload_moves.move(database, to, smallest=smallest):
            progress(size)


def check_payloads(*, digests: bool = False) -> list[str]:
    """Return a sentence for each payload whose object is missing, or with `digests` has other bytes.

    Raises:
        SettingsUnusable, Unavailable: database or store cannot be used.
    """
    with _current_database() as database:
        return list(payload_moves.missing(database, digests=digests))


def take_over(store: str | None) -> str:
    """Make this database the owner of its folder in a store, by default that of the settings; return its URL.

    Raises:
        SettingsUnusable: there is no store, or the database cannot be used.
        Unavailable: the store does not answer.
    """
    url = store or load_settings().payload_store
    if not url:
        raise SettingsUnusable("TESSERA_PAYLOAD_STORE is not set; set it, or pass --store s3://BUCKET/PREFIX")
    require_url(url)
    with _current_database() as database:
        payload_moves.require(database, url)
        payload_moves.ownership(database, url).take_over()
    return url


@contextmanager
def _current_database() -> Iterator[Database]:
    with opened_database(load_settings()) as database:
        # A command must not migrate a database beside a running service.
        if not migrations.is_current(database):
            raise SettingsUnusable(migrations.outdated(database))
        yield database
