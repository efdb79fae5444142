"""Sample the stacks of a running server with py-spy: by processor time and by wall time.

A sampler inside the process (`sys._current_frames`) does not work: CPython 3.11 crashes when such a thread
follows the frames of others. py-spy reads them while the process stands still, and only one py-spy at a time
can stop it, so that each kind has its own part of a run.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

Stacks = Mapping[tuple[str, ...], float]
"""Seconds by stack; a stack has the frames from the outermost, as file:function."""

KINDS: Final[Mapping[str, tuple[str, ...]]] = {"processor": (), "wall": ("--idle",)}
"""Options of py-spy by kind: threads that use a processor, and all that do not wait for work."""

_RATE = 100
_WRITING_SECONDS = 60
_PY_SPY = str(Path(sys.executable).parent / "py-spy")
_OUTCOME = re.compile(r"Samples: (\d+) Errors: (\d+)")
_MOST_LOST = 0.05
_FRAME = re.compile(r"(?P<function>.*) \((?P<file>.*):\d+\)")
_ROOT = Path(__file__).parents[1]
# An environment may be inside of the checkout.
_LIBRARIES = (Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("stdlib")), _ROOT)
_IDLE = {"threading.py", "queue.py", "selectors.py", "asyncio/runners.py"}
"""Files whose functions wait for work; stacks that end in them are left out."""


class SamplingFailed(Exception):
    """py-spy could not read the process; the message has its output."""


def read(file: Path) -> dict[str, Stacks]:
    """Return the stacks of samples beside `file`, by kind: processor and wall."""
    return {kind: _read(_samples(file, kind)) for kind in KINDS}


@contextmanager
def sampled(kind: str, process_id: int, file: Path) -> Iterator[None]:
    """Sample a process during the block, 100 times a second; the samples go to a file beside `file`.

    Raises:
        SamplingFailed: py-spy ended with an error, or lost more than a twentieth of its samples.
    """
    command = [_PY_SPY, "record", "--pid", str(process_id), "--rate", str(_RATE), *KINDS[kind]]
    shape = ["--format", "raw", "--function", "--full-filenames", "--output", str(_samples(file, kind))]
    with subprocess.Popen(
        [*command, *shape], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                output, _ = process.communicate(timeout=_WRITING_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    outcome = _OUTCOME.search(output)
    if process.returncode != 0 or outcome is None:
        raise SamplingFailed(f"py-spy ended with status {process.returncode}: {output.strip()}")
    samples, errors = (int(count) for count in outcome.groups())
    if errors > _MOST_LOST * samples:
        raise SamplingFailed(f"py-spy took {samples} samples and lost {errors}; measure again")


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
