"""Run schedules, hunt mutants, or replay a seed: `python -m tests.faults.fault_simulation --schedules 9`."""

from __future__ import annotations

import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.faults.fault_simulation.campaign import ENOUGH, hunts_by, missing, schedules_by, workers
from tests.faults.fault_simulation.mutants import planted
from tests.faults.fault_simulation.planting import MUTANTS
from tests.faults.fault_simulation.world import Outcome, run_schedule
from tests.house.rotation import first_seed

CORES = len(os.sched_getaffinity(0))
console = Console()


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def _number(seed: str) -> int:
    if not seed.isdecimal():
        raise typer.BadParameter(f"{seed!r} is neither auto nor a number from 0", param_hint="--seed")
    return int(seed)


def _replay(seed: int, mutant: str | None) -> None:
    chosen = next((candidate for candidate in MUTANTS if candidate.name == mutant), None)
    if mutant is not None and chosen is None:
        raise typer.BadParameter(f"there are {', '.join(candidate.name for candidate in MUTANTS)}")
    run_schedule(0)
    with planted(chosen):
        outcome = run_schedule(seed, trace=True)
    for line in outcome.trace:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"digest {outcome.digest}", highlight=False)
    raise typer.Exit(outcome.violation is not None)


def _hunt(pool: ProcessPoolExecutor, first: int) -> bool:
    table = Table("mutant", "promise that broke", "schedules", "seed", title="Planted faults")
    escaped, hunts = 0, hunts_by(pool, first)
    with _progress() as progress:
        for hunted in progress.track(hunts, total=len(MUTANTS), description="mutants"):
            tries, outcome = str(hunted.tries), hunted.outcome
            escaped += outcome is None
            if outcome is None:
                table.add_row(hunted.mutant, "[red]not found", tries, "")
            else:
                table.add_row(hunted.mutant, str(outcome.violation), tries, str(outcome.seed))
    console.print(table)
    console.print(f"{len(MUTANTS) - escaped} of {len(MUTANTS)} mutants found", highlight=False)
    return escaped == 0


def _run_schedules(pool: ProcessPoolExecutor, first: int, number: int) -> bool:
    began, facts, broken = time.perf_counter(), Counter[str](), list[Outcome]()
    outcomes = schedules_by(pool, first, number)
    with _progress() as progress:
        for outcome in progress.track(outcomes, total=number, description="schedules"):
            facts.update(outcome.facts)
            if outcome.violation is not None:
                broken.append(outcome)
                progress.console.print(f"[red]seed {outcome.seed}[/]: {outcome.violation}")
    took = time.perf_counter() - began
    table = Table("what happened", "how often", title=f"{number} schedules in {took:.0f} s")
    for fact, times in sorted(facts.items()):
        table.add_row(fact, str(times))
    table.add_row("promises broken", f"[{'red' if broken else 'green'}]{len(broken)}")
    console.print(table)
    absent = missing(facts) if number >= ENOUGH else []
    if absent:
        console.print(f"[red]never happened:[/] {', '.join(absent)}; these schedules test too little")
    return not (broken or absent)


def main(
    number: Annotated[int, typer.Option("--schedules", min=0, help="how many seeds to play")] = 1000,
    seed: Annotated[str, typer.Option(help="the first seed, or auto: the commit chooses it")] = "auto",
    processes: Annotated[int, typer.Option("--workers", min=1, help="how many at once")] = CORES,
    mutants: Annotated[bool, typer.Option("--mutants", help="hunt the planted faults too")] = False,
    replay: Annotated[int | None, typer.Option(min=0, help="tell what happens in one schedule")] = None,
    mutant: Annotated[str | None, typer.Option(help="with --replay: plant this fault")] = None,
) -> None:
    """Play the whole system through schedules of faults, and say which promises broke."""
    if replay is not None:
        _replay(replay, mutant)
    first = first_seed() if seed == "auto" else _number(seed)
    console.print(
        f"seeds {first} to {first + number - 1}; repeat them with "
        f"make fault-simulation SCHEDULES={number} FIRST_SEED={first}",
        highlight=False,
        soft_wrap=True,
    )
    with workers(processes) as pool:
        is_well = _run_schedules(pool, first, number)
        if mutants:
            is_well = _hunt(pool, first) and is_well
    raise typer.Exit(not is_well)


if __name__ == "__main__":
    typer.run(main)
