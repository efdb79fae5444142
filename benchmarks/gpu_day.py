"""Run what needs a GPU in the order of its worth, until the time is over, and print a table.

    python -m benchmarks.gpu_day [--minutes 60] [--device auto] [--sizes 1b,7b] [--quantization nf4]
        [--out runs/benchmarks/gpu_day.json]

The first step is the tests of tests/gpu. Then follow, for each size, a training step by the agent's loop and
by TRL's SFTTrainer, with other attention, with compiled layers and with liger-kernel's loss (`step_ways`),
and a federation of two silos from enrolment to an answer from the export (`whole_federation`). Each step is a
process, which is ended with its children when the time is over; a step that cannot run has its reason in the
table. The file is written after each step. `--sizes tiny --quantization none` shows every step on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import figures
from benchmarks.random_llama import LARGE, SIZES
from benchmarks.step_ways import LIBRARIES

_LEAST_SECONDS = 20.0
"""A step with less time than this would only load a library."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the day: its name, the module and arguments of its process, and the libraries it needs."""

    name: str
    arguments: tuple[str, ...]
    needs_gpu: bool = False
    libraries: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step came to: `ok`, or why not, its seconds and its figures."""

    name: str
    state: str
    seconds: float = 0.0
    figures: dict[str, object] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sizes", default="1b,7b", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--quantization", choices=["none", "nf4", "int8"], default="nf4")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/gpu_day.json"))
    chosen = parser.parse_args()
    sizes = chosen.sizes.split(",")
    if not SIZES.keys() >= set(sizes):
        parser.error(f"--sizes: {chosen.sizes} is not a list of {', '.join(SIZES)}")
    has_gpu = torch.cuda.is_available()
    if chosen.device.startswith("cuda") and not has_gpu:
        parser.error("there is no GPU here that torch can use; pass --device cpu to show the steps")
    console = Console()
    outcomes = []
    planned = steps(sizes, chosen.quantization, chosen.device)
    for outcome in played(planned, time.monotonic() + 60 * chosen.minutes, has_gpu=has_gpu):
        outcomes.append(outcome)
        console.print(f"{outcome.name}: {outcome.state}", soft_wrap=True, highlight=False)
        figures.write(chosen.out, {"machine": figures.machine(), "steps": [asdict(o) for o in outcomes]})
    columns = ("step", "state", "s", "ms per step", "tokens/s", "peak MiB", "loss")
    figures.show(console, f"figures in {chosen.out}", columns, [row_of(outcome) for outcome in outcomes])


def steps(sizes: Sequence[str], quantization: str, device: str) -> list[Step]:
    """Return the steps, the most valuable first: a day may end after any of them."""
    planned = [Step("tests/gpu", ("pytest", "-q", "-m", "gpu", "tests/gpu"), needs_gpu=True)]
    for size in sizes:
        model = ("--size", size, "--quantization", quantization, "--device", device)
        training = ("benchmarks.step_ways", *model, *(("--gradient-checkpointing",) if size in LARGE else ()))
        planned += [
            Step(f"{size}: agent", (*training, "--way", "agent")),
            Step(f"{size}: TRL", (*training, "--way", "trl"), libraries=LIBRARIES["trl"]),
            Step(f"{size}: federation", ("benchmarks.whole_federation", *model)),
            Step(f"{size}: TRL, liger-kernel", (*training, "--way", "liger"), libraries=LIBRARIES["liger"]),
            Step(f"{size}: compiled layers", (*training, "--way", "compiled")),
            Step(f"{size}: eager attention", (*training, "--way", "agent", "--attention", "eager")),
        ]
    return planned


def played(planned: Sequence[Step], deadline: float, *, has_gpu: bool) -> Iterator[Outcome]:
    """Run steps one after the other until the deadline of the monotonic clock; yield what each came to."""
    for step in planned:
        seconds_left = deadline - time.monotonic()
        # Looked up here: a process would first import torch.
        missing = [library for library in step.libraries if find_spec(library) is None]
        if step.needs_gpu and not has_gpu:
            yield Outcome(step.name, "skipped: no GPU")
        elif seconds_left < _LEAST_SECONDS:
            yield Outcome(step.name, "skipped: the time is over")
        elif missing:
            yield Outcome(step.name, f"skipped: {' and '.join(missing)} is not installed")
        else:
            yield _run(step, seconds_left)


def _run(step: Step, seconds_left: float) -> Outcome:
    """Run the process of a step for at most `seconds_left`."""
    began = time.monotonic()
    try:
        ended = _ended([sys.executable, "-m", *step.arguments], seconds_left)
    except subprocess.TimeoutExpired:
        return Outcome(step.name, "ended: the time is over", time.monotonic() - began)
    seconds = time.monotonic() - began
    printed = (ended.stdout if not ended.returncode else ended.stderr or ended.stdout).strip()
    last = printed.splitlines()[-1] if printed else ""
    if ended.returncode:
        return Outcome(step.name, f"failed: {last}", seconds, {"output": printed[-4000:]})
    # Skipped tests, as those without a GPU, end with status 0, too.
    if step.arguments[0] == "pytest" and re.search(r"\b[1-9]\d* passed\b", last) is None:
        return Outcome(step.name, f"failed: no test passed: {last}", seconds, {"output": printed[-4000:]})
    printed_figures = json.loads(last) if last.startswith("{") else {"output": last}
    return Outcome(step.name, "ok", seconds, printed_figures)


def _ended(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end.

    Raises:
        TimeoutExpired: it takes longer; the command and all that it started were ended.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            output, complaints = process.communicate(timeout=seconds)
        # Any exception: an interrupt from the keyboard does not reach another session.
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, complaints)


def row_of(outcome: Outcome) -> list[object]:
    """Return a row of the table; a figure that a step does not have is a dash."""
    names = ("ms", "tokens_per_second", "peak_mib", "loss")
    return [outcome.name, outcome.state, outcome.seconds, *(outcome.figures.get(name, "-") for name in names)]


if __name__ == "__main__":
    main()
