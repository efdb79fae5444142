"""Run `tessera serve` and sample its threads: `python -m benchmarks.profiled_server FILE serve ...`.

Each sample adds to a thread's stack the processor time that the thread has used since the sample before,
which the kernel counts exactly, and the wall time between both. A thread that was idle at both samples gets a
stack of its own name: what ran between was shorter than the pause. When the server stops, FILE gets a line of
JSON for each stack: its frames from the outermost, its processor seconds and its wall seconds. Beside it, the
file with the suffix .counts.json gets the numbers of write transactions and statements. Without signals both
are those of the whole life of the process.
"""

from __future__ import annotations

import json
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

from benchmarks.statement_counts import StatementCounts
from schemas.command import main

PROFILED_FROM_HERE, PROFILED_TO_HERE = signal.SIGUSR1, signal.SIGUSR2
"""Signals: forget all samples and counts so far; end them."""

COUNTS_SUFFIX = ".counts.json"

_PAUSE_SECONDS = 0.002
# By default a thread may keep the interpreter for 5 ms, longer than the pause between samples.
_SWITCH_SECONDS = 0.0005
_ROOT = Path(__file__).parents[1]
_LIBRARIES = (_ROOT, Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("stdlib")))
_IDLE = {"threading.py", "queue.py", "selectors.py", "asyncio/runners.py"}
"""Files whose functions wait."""

Stack = tuple[str, ...]


class Sampler:
    """A thread that samples all others from `start` to `stop`."""

    def __init__(self) -> None:
        self.costs: dict[Stack, list[float]] = {}
        self._names: dict[CodeType, str] = {}
        self._used: dict[int, tuple[float, bool]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()

    def end(self) -> None:
        """Take no further sample."""
        self._stopping.set()

    def stop(self) -> None:
        self.end()
        self._thread.join()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._stopping.wait(_PAUSE_SECONDS):
            now = time.monotonic()
            self._sample(now - before)
            before = now

    def _sample(self, seconds: float) -> None:
        frames = sys._current_frames()
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if frame is None or thread is self._thread or thread.native_id is None:
                continue
            try:
                used = time.clock_gettime(_processor_clock(thread.native_id))
            except OSError:  # the thread has ended
                continue
            stack = tuple(self._names_of(frame))[::-1]
            is_idle = stack[-1].split(":")[0] in _IDLE
            earlier, was_idle = self._used.get(thread.native_id, (used, True))
            self._used[thread.native_id] = used, is_idle
            if is_idle and was_idle:
                stack = (f"{thread.name.partition('_')[0].rstrip('0123456789- ')}: shorter than a sample",)
            cost = self.costs.setdefault(stack, [0.0, 0.0])
            cost[0] += used - earlier
            cost[1] += 0.0 if is_idle else seconds

    def _names_of(self, frame: FrameType | None) -> Iterator[str]:
        while frame is not None:
            code = frame.f_code
            if code not in self._names:
                self._names[code] = f"{_file(code.co_filename)}:{code.co_qualname}"
            yield self._names[code]
            frame = frame.f_back


def _processor_clock(native_id: int) -> int:
    """Return the clock of a thread's processor time (clock_getcpuclockid(3), for a thread)."""
    return (~native_id << 3) | 6


def _file(name: str) -> str:
    path = Path(name)
    return next((str(path.relative_to(root)) for root in _LIBRARIES if path.is_relative_to(root)), path.name)


def _serve(file: Path) -> None:
    sampler, counts = Sampler(), StatementCounts()

    def begin_anew(*_: object) -> None:
        sampler.costs.clear()
        counts.clear()

    def end(*_: object) -> None:
        sampler.end()
        counts.end()

    signal.signal(PROFILED_FROM_HERE, begin_anew)
    signal.signal(PROFILED_TO_HERE, end)
    sampler.start()
    counts.start()
    try:
        main()
    finally:
        sampler.stop()
        counts.write(file.with_suffix(COUNTS_SUFFIX))
        lines = (json.dumps([stack, *cost]) for stack, cost in sampler.costs.items())
        file.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    out = Path(sys.argv.pop(1))
    _serve(out)
