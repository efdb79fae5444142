"""The weights given to clients, as at the time of giving, also after pruning."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tests.faults.fault_simulation import published

if TYPE_CHECKING:
    from tests.faults.fault_simulation.world import World

Row = tuple[Any, ...]

ROWS = "SELECT id, client_id, round_number, payload_id, head, begin, digest, bytes FROM weights"
_NEW = f"{ROWS} WHERE id > ? ORDER BY id"


class GivenWeights:
    """All rows of weights by id, with their content."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last = 0
        self.rows: dict[int, Row] = {}
        self.values: dict[int, NDArray[np.float32] | None] = {}
        self._of: dict[str, dict[int, int]] = defaultdict(dict)  # by client and round: the row's id

    def look(self, connection: sqlite3.Connection) -> list[Row]:
        """Record the weights that were given since the last call."""
        rows = connection.execute(_NEW, (self._last,)).fetchall()
        for row in rows:
            self._last, client, number = row[:3]
            self.rows[self._last] = row
            self.values[self._last] = published.read_weights(self._world, connection, row)
            self._of[client][number] = self._last
        return rows

    def rounds(self) -> dict[str, set[int]]:
        """Return the rounds for which each client was served weights."""
        return {client: set(rounds) for client, rounds in self._of.items()}

    def published(self, number: int) -> NDArray[np.float32] | None:
        """Return the weights that were given first for the start of a round; None if there are none."""
        rows = (row for row, row_values in self.rows.items() if row_values[2] == number)
        first = min(rows, default=None)
        return self.values[first] if first is not None else None

    def to(self, client: str, number: int) -> int | None:
        """Return the row of the weights with which a client starts round `number`; None if there are none."""
        of_client = self._of.get(client, {})
        newest = max((known_round for known_round in of_client if known_round <= number), default=None)
        return of_client[newest] if newest is not None else None
