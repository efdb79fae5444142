"""A database and payloads as a thief reads them: every value, at every commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text

from schemas.messages.secure_sum import UnmaskStep
from tests.scene.secure_sums import Shares, shares_in


@dataclass
class Thief:
    """All messages that were stored in any committed state, and the shares in them."""

    federation_id: str = ""
    """The federation that it is interested in."""
    messages: dict[Key, bytes] = field(default_factory=dict)
    commits: int = 0
    now: set[Key] = field(default_factory=set)
    """The messages of the last commit."""

    def see(self, connection: Connection) -> None:
        """Read what the transaction that commits leaves."""
        cursor = connection.connection.cursor()
        try:
            cursor.execute(
                "SELECT m.session_id, m.position, m.step, m.body, m.payload_id FROM sum_messages m"
                " JOIN sum_sessions s ON s.id = m.session_id JOIN rounds r ON r.id = s.round_id"
                f" WHERE r.federation_id = '{self.federation_id}'"
            )
            rows = cursor.fetchall()
            self.now = {(session, position, step) for session, position, step, *_ in rows}
            for session, position, step, body, payload in rows:
                if body is None:
                    cursor.execute(
                        f"SELECT data FROM payload_chunks WHERE payload_id = {int(payload)} ORDER BY begin"
                    )
                    body = b"".join(bytes(data) for (data,) in cursor.fetchall())
                self.messages[session, position, step] = bytes(body)
        finally:
            cursor.close()
        self.commits += 1

    def sessions(self) -> set[int]:
        return {session for session, _, _ in self.messages}

    def of(self, session: int, step: str) -> dict[int, bytes]:
        return {
            place: body for (of, place, name), body in self.messages.items() if (of, name) == (session, step)
        }

    def shares(self, session: int) -> Shares:
        unmasked = self.of(session, "unmask")
        return shares_in({n: UnmaskStep.model_validate_json(body) for n, body in unmasked.items()})


@contextmanager
def thief_at_every_commit() -> Iterator[Thief]:
    thief = Thief()
    event.listen(Engine, "commit", thief.see)
    try:
        yield thief
    finally:
        event.remove(Engine, "commit", thief.see)


def row_values(url: str) -> Iterator[Any]:
    """Yield every value of every row of every table."""
    engine = create_engine(url)
    with engine.connect() as connection:
        for table in inspect(engine).get_table_names():
            for row in connection.execute(text(f'SELECT * FROM "{table}"')):
                yield from row
    engine.dispose()


def as_bytes(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()


Key = tuple[int, int, str]  # session, position and step of a message
