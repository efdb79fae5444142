"""Sample the stacks of a running server with py-spy: by processor time and by wall time.

A sampler inside of the process (`sys._current_frames`) is no choice: CPython 3.11 crashes when such a thread
follows the frames of others. py-spy reads them while the process stands still.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

Stacks = Mapping[tuple[str, ...], float]
"""Seconds by stack; a stack has the frames from the outermost, as file:function."""

_KINDS: Final[Mapping[str, tuple[str, ...]]] = {"processor": (), "wall": ("--idle",)}
_RATE = 100
_PY_SPY = str(Path(sys.executable).parent / "py-spy")
_FRAME = re.compile(r"(?P<function>.*) \((?P<file>.*):\d+\)")
_ROOT = Path(__file__).parents[1]
_LIBRARIES = (_ROOT, Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("stdlib")))
_IDLE = {"threading.py", "queue.py", "selectors.py", "asyncio/runners.py"}
"""Files whose functions wait for work; the wall time of their stacks is left out."""


class SamplingFailed(Exception):
    """py-spy could not read the process; the message has its output."""


@contextmanager
def sampled(process_id: int, file: Path) -> Iterator[None]:
    """Sample a process during the block, 100 times a second; the samples go to files beside `file`.

    Raises:
        SamplingFailed: py-spy ended with an error.
    """
    with ExitStack() as stack:
        for kind in _KINDS:
            stack.enter_context(_py_spy(kind, process_id, _samples(file, kind)))
        yield


def read(file: Path) -> dict[str, Stacks]:
    """Return the stacks of samples beside `file`, by kind: processor and wall."""
    return {kind: _read(_samples(file, kind)) for kind in _KINDS}


@contextmanager
def _py_spy(kind: str, process_id: int, samples: Path) -> Iterator[None]:
    command = [_PY_SPY, "record", "--pid", str(process_id), "--rate", str(_RATE), *_KINDS[kind]]
    shape = ["--format", "raw", "--function", "--full-filenames", "--output", str(samples)]
    with subprocess.Popen(
        [*command, *shape], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=60)
    if process.returncode != 0:
        raise SamplingFailed(f"py-spy ended with status {process.returncode}: {output.strip()}")


def _samples(file: Path, kind: str) -> Path:
    return file.with_suffix(f".{kind}.txt")


def _read(samples: Path) -> Stacks:
    stacks: dict[tuple[str, ...], float] = {}
    for line in samples.read_text("utf-8").splitlines():
        frames, _, count = line.rpartition(" ")
        stack = tuple(_name(frame) for frame in frames.split(";"))
        if stack[-1].partition(":")[0] not in _IDLE:
            stacks[stack] = stacks.get(stack, 0.0) + int(count) / _RATE
    return stacks


def _name(frame: str) -> str:
    match = _FRAME.fullmatch(frame)
    if match is None:
        return frame
    path = Path(match["file"])
    file = next((str(path.relative_to(root)) for root in _LIBRARIES if path.is_relative_to(root)), path.name)
    return f"{file}:{match['function']}"
