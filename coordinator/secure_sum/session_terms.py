"""Parse what a session has stored, once per process: its terms, and the messages of closed phases.

Both never change, and parsing 128 lists of 127 ciphertexts for each of 128 readers would take seconds. Keys
have the digest of the terms, which name one session of one coordinator.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import TypeVar

from coordinator.db.tables.secure_sum import SumSessionRow
from schemas.messages.secure_sum import CAPABILITY, SumTerms

Value = TypeVar("Value")

_MOST = 64


class _Recent:
    """The values of the most recently used keys."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, object] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the value of a key, computed if it is not stored; two threads may compute it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]  # type: ignore[return-value]
        # Outside of the lock, since it may take long; computed twice, it is the same.
        value = compute()
        with self._lock:
            self._values[key] = value
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        return value


_RECENT = _Recent(_MOST)


def terms_of(row: SumSessionRow) -> SumTerms:
    return _RECENT.get((row.terms_hash, "terms"), lambda: SumTerms.model_validate(row.terms))


def is_of_earlier_version(terms: SumTerms) -> bool:
    """Whether a session was opened before an upgrade: its masks cannot be removed."""
    return terms.format != CAPABILITY


def once(row: SumSessionRow, name: str, compute: Callable[[], Value]) -> Value:
    """Return the value that `compute` derives from closed phases of a session, once per process."""
    return _RECENT.get((row.terms_hash, name), compute)
