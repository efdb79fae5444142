"""Run `tessera serve` and count its work: `python -m benchmarks.profiled_server FILE serve ...`.

When the server stops, FILE gets the numbers of write transactions and statements as JSON, by function.
Without signals they are those of the whole life of the process. Any process of the same user may read the
server's stacks.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path

from benchmarks.statement_counts import StatementCounts
from schemas.command import main

PROFILED_FROM_HERE, PROFILED_TO_HERE = signal.SIGUSR1, signal.SIGUSR2
"""Signals: forget all counts so far; end them."""

_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, -1  # prctl(2)


def _serve(file: Path) -> None:
    # Where only parents may read a process (Yama), py-spy is a sibling. Elsewhere the call does no harm.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_long(_PR_SET_PTRACER_ANY), 0, 0, 0)
    counts = StatementCounts()
    signal.signal(PROFILED_FROM_HERE, lambda *_: counts.clear())
    signal.signal(PROFILED_TO_HERE, lambda *_: counts.end())
    counts.start()
    try:
        main()
    finally:
        counts.write(file)


if __name__ == "__main__":
    out = Path(sys.argv.pop(1))
    _serve(out)
