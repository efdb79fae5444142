"""Read numbers of a stored payload in order, in few transactions and little memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.db.engine import Database
from coordinator.storage import payloads

_AHEAD = 2**14  # 64 KiB: many small tensors are read at once


@dataclass
class PayloadValues:
    """Numbers of one type, `count` of them from the beginning of a payload; reads are cheapest in order."""

    database: Database
    payload_id: int
    dtype: str
    count: int
    _begin: int = field(init=False, default=0)
    _window: NDArray[Any] = field(init=False)

    def __post_init__(self) -> None:
        self._window = np.zeros(0, self.dtype)

    def read(self, begin: int, count: int) -> NDArray[Any]:
        """Return `count` numbers from `begin` on, (count,).

        Raises:
            LookupError: there are fewer, or the payload was deleted.
        """
        if begin < 0 or begin + count > self.count:
            raise LookupError(f"payload {self.payload_id} has no numbers {begin} to {begin + count}")
        at = begin - self._begin
        if at < 0 or at + count > len(self._window):
            end = min(self.count, begin + max(count, _AHEAD))
            width = np.dtype(self.dtype).itemsize
            octets = payloads.read_alone(self.database, self.payload_id, width * begin, width * end)
            self._begin, self._window, at = begin, np.frombuffer(octets, self.dtype), 0
        return self._window[at : at + count]
