"""Places at which a process may be told to die or to freeze, to prove that nothing acknowledged is lost then.

`TESSERA_CRASH=LABEL:N` kills the process, as `kill -9` does, when it comes to the place of that label for the
N-th time; `LABEL:N:stop` stops it there until somebody continues it. Without the variable, as in every
deployment, a place costs one comparison.
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
    "claim-written",
    "claim-committed",
    "block-staged",
    "publication-written",
    "publication-committed",
    "collection-deleted",
]
"""`written` = before the commit, `committed` = after it and before anybody is told."""

PLACES: tuple[Place, ...] = get_args(Place)


class _Countdown:
    """How often a place may still be passed."""

    def __init__(self, wanted: str) -> None:
        label, _, rest = wanted.partition(":")
        nth, _, action = rest.partition(":")
        if label not in PLACES or not nth.isdecimal() or int(nth) < 1 or action not in ("", "stop"):
            raise SettingsUnusable(f"{VARIABLE} is LABEL:N or LABEL:N:stop; labels: {', '.join(PLACES)}")
        self.place = label
        self._signal = signal.SIGSTOP if action else signal.SIGKILL
        self._left = int(nth)
        self._lock = Lock()

    def pass_by(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), self._signal)


_armed: _Countdown | None = None


def arm() -> None:
    """Do from now on what the environment wants.

    Raises:
        SettingsUnusable: it wants something impossible.
    """
    global _armed
    _armed = _Countdown(os.environ[VARIABLE]) if VARIABLE in os.environ else None


def may_crash(place: Place) -> None:
    """Die here, if somebody wanted it."""
    if _armed is not None and _armed.place == place:
        _armed.pass_by()
