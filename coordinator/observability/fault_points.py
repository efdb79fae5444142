"""Points at which tests kill or stop the process: `TESSERA_CRASH=LABEL:N` kills it at the N-th pass of a
label, `LABEL:N:stop` stops it.
"""

from __future__ import annotations

import os
import signal
from threading import Lock
from typing import Literal, get_args

from coordinator.errors import SettingsUnusable

VARIABLE = "TESSERA_CRASH"

Place = Literal[
    "enrolment-written",
    "enrolment-committed",
    "start-committed",
    "join-written",
    "join-committed",
    "download-counted",
    "update-received",
    "update-decoded",
    "update-written",
    "update-committed",
    "ready-written",
    "ready-committed",
    "sum-message-written",
    "sum-message-committed",
    "sum-claim-written",
    "sum-claim-committed",
    "sum-block-staged",
    "sum-total-written",
    "sum-total-committed",
    "sum-abort-written",
    "sum-abort-committed",
    "claim-written",
    "claim-committed",
    "block-staged",
    "publication-written",
    "publication-committed",
    "collection-deleted",
    "payload-put",
    "payload-moved",
    "owner-written",
    "owner-put",
]
"""`written`: before the commit; `committed`: after it, before any notification or response."""

PLACES: tuple[Place, ...] = get_args(Place)


class _Countdown:
    """The number of passes of a point before the process is killed or stopped."""

    def __init__(self, specification: str) -> None:
        label, _, count_and_action = specification.partition(":")
        nth, _, action = count_and_action.partition(":")
        if label not in PLACES or not nth.isdecimal() or int(nth) < 1 or action not in ("", "stop"):
            raise SettingsUnusable(
                f"{VARIABLE}: not LABEL:N or LABEL:N:stop; use a label of {', '.join(PLACES)}"
            )
        self.place = label
        self._signal = signal.SIGSTOP if action else signal.SIGKILL
        self._left = int(nth)
        self._lock = Lock()

    def count_pass(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                # A signal, not an exit: nothing may be cleaned up, as in a power failure.
                os.kill(os.getpid(), self._signal)


_armed: _Countdown | None = None


def arm() -> None:
    """Read the point to fail at from the environment.

    Raises:
        SettingsUnusable: the variable is malformed.
    """
    global _armed
    _armed = _Countdown(os.environ[VARIABLE]) if VARIABLE in os.environ else None


def may_crash(place: Place) -> None:
    """Kill or stop the process if this point is armed and its count reached."""
    if _armed is not None and _armed.place == place:
        _armed.count_pass()
