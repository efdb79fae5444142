"""Ctrl-C and SIGTERM of commands that run other processes: answered at once, while the processes end."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_is_stopping = False


def is_stopping() -> bool:
    """Whether a signal has ended the run, so that its progress is no news any more."""
    return _is_stopping


def answer_at_once() -> None:
    """Print `stopping ...` and raise KeyboardInterrupt at the first signal; ignore later ones.

    Main thread only.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    global _is_stopping
    _is_stopping = True
    # A second Ctrl-C would interrupt the clean-up and leave processes behind.
    for ignored in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    os.write(sys.stderr.fileno(), b"stopping ...\n")  # a buffered write may be what the signal interrupts
    raise KeyboardInterrupt
