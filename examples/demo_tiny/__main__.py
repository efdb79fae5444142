"""`make demo-tiny`: run five methods over the same seven silos, show live how far they are, and report."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from client_agent.errors import AgentError
from client_agent.transport.admin_client import Answer, Operator
from examples.agents import INTERRUPTED, NOT_RESUMED, DemoFailed, make_room, may_be_emptied
from examples.demo_tiny import alone, federated, report
from examples.demo_tiny.alone import Report
from examples.demo_tiny.silos import EXAMPLES, SiloSetup
from examples.preloaded import preloaded
from studies.coordinator_process import running_coordinator
from studies.interrupts import answer_at_once, is_stopping
from studies.remaining_time import Schedule, Stage, every_minute

ROUNDS = 6
_STAGES = (
    Stage("fedmosaic", 170),
    Stage("fedmosaic_random_frames", 130),
    Stage("fedavg", 130),
    Stage("local", 110),
    Stage("local_lora", 75),
)


def main() -> int:
    """Run the demo; 1 if something did not work."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo_tiny", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="draws other examples; 0 is examples/silos")
    parser.add_argument("--out", type=Path, default=None, help="where to write (default: runs/demo-tiny)")
    arguments = parser.parse_args()
    out = (
        arguments.out
        or Path("runs/demo-tiny" if arguments.seed == 0 else f"runs/demo-tiny-seed-{arguments.seed}")
    ).resolve()
    console = Console()
    if arguments.out is not None and not may_be_emptied(out):
        parser.error(f"--out: {out} is there and no earlier demo's; pass a new folder")
    answer_at_once()
    make_room(out)
    began = time.monotonic()
    try:
        scores, federations = _run(arguments.seed, out, console)
    except (DemoFailed, AgentError) as error:
        console.print(f"[red]the demo stopped:[/red] {error}")
        return 1
    except KeyboardInterrupt:
        print(NOT_RESUMED, file=sys.stderr)
        return INTERRUPTED
    summary = report.build(scores, federations, time.monotonic() - began)
    page = report.write(summary, out)
    console.print(f"{summary['seconds']:.0f} s; figures in {out / 'report.json'}, pictures in {page}")
    report.show(summary, console)
    return 0


def _run(
    seed: int, out: Path, console: Console
) -> tuple[dict[str, dict[str, list[Answer]]], dict[str, federated.FederatedResult]]:
    data = EXAMPLES / "silos" if seed == 0 else out / "silos"
    if seed != 0:
        drawn = ["--seed", str(seed), "--out", str(data), "--anchors", "0"]
        subprocess.run(
            [sys.executable, "-m", "examples.silos.make_silos", *drawn], check=True, stdout=subprocess.DEVNULL
        )
    scores: dict[str, dict[str, list[Answer]]] = {}
    federations: dict[str, federated.FederatedResult] = {}
    with (
        preloaded() as tessera,
        running_coordinator(out / "coordinator") as running,
        Operator(running.url, running.token) as operator,
        _Progress(console) as show,
    ):
        for method, strategy, frames in (
            ("fedmosaic", "fedmosaic", "pca-tok"),
            ("fedmosaic_random_frames", "fedmosaic", "random"),
            ("fedavg", "fedavg", "pca-tok"),
        ):
            plan = federated.plan_of(method, strategy, frames, ROUNDS)
            result = federated.run_federation(tessera, operator, plan, data, out / method, show(method))
            federations[method] = result
            scores[method] = {name: [c["scores"] for c in rounds] for name, rounds in result.by_silo.items()}

        def pack_of(silo: SiloSetup) -> Path | None:
            folder = out / "fedmosaic" / silo.name / "state" / federations["fedmosaic"].federation
            return folder / "pack.safetensors"

        scores["local"] = alone.run_alone(
            tessera, alone.local_plan(ROUNDS), data, out / "local", pack_of, show("local")
        )
        scores["local_lora"] = alone.run_alone(
            tessera,
            alone.local_lora_plan(ROUNDS),
            data,
            out / "local_lora",
            lambda _: None,
            show("local_lora"),
        )
    return scores, federations


class _Progress:
    """Show one line per method: a live bar on a terminal, changes as lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.fields[method]:<24}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._schedule = Schedule(_STAGES)
        self._background = ExitStack()
        self._all = self._bar.add_task("", total=len(report.METHODS), method="methods", start=True)
        self._finished = -1

    def __enter__(self) -> Callable[[str], Report]:
        self._line(self._schedule.opening())
        self._bar.start()
        self._background.enter_context(every_minute(lambda: self._line(self._schedule.line())))
        return self._method

    def __exit__(self, *_: object) -> None:
        self._background.close()
        self._bar.stop()

    def _line(self, text: str) -> None:
        if is_stopping():
            return
        self._console.print(text, soft_wrap=True, highlight=False)

    def _method(self, name: str) -> Report:
        self._finished += 1
        self._schedule.enter(name)
        last = ""

        def show(label: str, share: float) -> None:
            nonlocal last
            self._schedule.reach(share)
            self._bar.update(self._all, completed=self._finished, method=name, description=label)
            if label != last and not self._console.is_terminal:
                self._line(f"{name}: {label}")
            last = label

        return show


if __name__ == "__main__":
    sys.exit(main())
