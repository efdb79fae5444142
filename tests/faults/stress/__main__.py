"""The long tests of loss and intrusion: all harnesses in turn, and one table.

python -m tests.faults.stress [--schedules 1000] [--kills 20] [--fuzz-seconds 60] [--only kills,replicas]

Two hours or so on two cores. Exit status 1 if anything was violated; runs/torture.json has the table.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from coordinator.db import migrate
from coordinator.db.engine import Database
from tests.faults.stress import kills, programs, real_agents, replicas
from tests.faults.stress.agents import wait_for_the_end
from tests.faults.stress.one_hot import Trial, check, taking_part
from tests.faults.stress.proxy import bad_network
from tests.faults.stress.summed import SummedTrial
from tests.faults.stress.targets import TARGETS
from tests.scene.postgres_server import PostgresServer
from tests.scene.replica_processes import Coordinator

OUT = Path("runs/torture.json")
READY_GOAL_SECONDS = 3


@dataclass
class Row:
    """What one harness did, and what it found."""

    harness: str
    done: str
    violations: int
    seconds: float = 0.0
    failure: str = ""


class Rack:
    """Runs harnesses on databases of their own."""

    def __init__(self, arguments: argparse.Namespace, postgres: PostgresServer, folder: Path) -> None:
        self.arguments = arguments
        self._postgres = postgres
        self._folder = folder
        self._count = 0
        postgres.create("template_torture")
        _migrate(postgres.url("template_torture"))

    def database(self, backend: str) -> tuple[str, Path]:
        """Make a migrated database and a folder beside it."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        if backend == "postgresql":
            self._postgres.create(f"torture_{self._count}", template="template_torture")
            return self._postgres.url(f"torture_{self._count}"), folder
        url = f"sqlite:///{folder / 'tessera.db'}"
        _migrate(url)
        return url, folder

    def crash_points(self) -> Iterator[Row]:
        """Die once at every place."""
        for backend in ("sqlite", "postgresql"):
            with _judged(Row(f"kill -9 at every place, {backend}", "", 0)) as row:
                outcome = kills.at_every_place(*self.database(backend), Trial(clients=4, rounds=8))
                row.done = f"{len(outcome.died_at)} kills, {_ready(outcome.back_after)}"
            yield row
            with _judged(Row(f"kill -9 at every place of a sum, {backend}", "", 0)) as row:
                outcome = kills.at_every_place_of_a_sum(*self.database(backend), SummedTrial())
                row.done = f"{len(outcome.died_at)} kills, {_ready(outcome.back_after)}"
            yield row

    def random_kills(self) -> Iterator[Row]:
        """Die at random moments until so many kills are done."""
        for backend in ("sqlite", "postgresql"):
            with _judged(Row(f"kill -9 at random, {backend}", "", 0)) as row:
                died, slowest, seed = 0, [0.0], 0
                while died < self.arguments.kills:
                    trial = Trial(clients=8, rounds=8)
                    outcome = kills.at_random(*self.database(backend), trial, seed=seed, every=1.0)
                    died, seed = died + len(outcome.died_at), seed + 1
                    slowest += outcome.back_after
                row.done = f"{died} kills in {seed} federations, {_ready(slowest)}"
            yield row

    def two_replicas(self) -> Iterator[Row]:
        """Freeze one, kill the other."""
        with _judged(Row("two replicas against one, postgresql", "", 0)) as row:
            trial = Trial(clients=4, rounds=40)
            alone = replicas.undisturbed(*self.database("postgresql"), trial)
            havoc = replicas.frozen_and_killed(*self.database("postgresql"), trial)
            assert havoc.published == alone, "the replicas published something else"
            row.done = (
                f"{len(havoc.frozen_at)} frozen beyond the lease, {len(havoc.killed_at)} killed,"
                f" {havoc.overtaken} overtaken: {len(alone)} weights the same, bit for bit"
            )
        yield row

    def real_agents(self) -> Iterator[Row]:
        """Six agents that train on two replicas, and on one; three of which one is cut off."""
        with _judged(Row("six training agents: two replicas against one", "", 0)) as row:
            alone = real_agents.undisturbed(*self.database("postgresql"))
            together = real_agents.on_two_replicas(*self.database("postgresql"))
            assert alone == together, "the replicas published something else"
            row.done = (
                "one killed, one frozen with the lease and overtaken:"
                f" {len(alone)} weights the same, bit for bit"
            )
        yield row
        with _judged(Row("three training agents, one cut off for a round", "", 0)) as row:
            standing = real_agents.cut_off(*self.database("sqlite"))
            assert standing["3"] == "arrived", standing
            assert standing["2"] != "arrived", standing
            assert "round 2: update not counted" in standing["log"], standing
            second = standing["2"]
            row.done = f"coordinator restarted; cut off in round 2 ({second}), said so, back in round 3"
        yield row

    def networks(self) -> Iterator[Row]:
        """Cut, swallow, double, trickle."""
        for backend in ("sqlite", "postgresql"):
            with _judged(Row(f"bad network, {backend}", "", 0)) as row:
                faults = 0
                for seed in range(5):
                    faults += self._network(backend, seed)
                row.done = f"{faults} connections with a fault"
            yield row

    def _network(self, backend: str, seed: int) -> int:
        trial = Trial(clients=4, rounds=6)
        url, folder = self.database(backend)
        coordinator = Coordinator(url, folder / "log")
        coordinator.start()
        try:
            with bad_network(coordinator.port, seed=seed) as network:
                with taking_part(trial, [network.url]) as (federation_id, agents):
                    wait_for_the_end(agents)
                    check(trial, url, federation_id, agents)
                return sum(count for fault, count in network.done.items() if fault != "none")
        finally:
            coordinator.kill()
            assert coordinator.errors == []

    def simulation(self) -> Iterator[Row]:
        """Many schedules, then all mutants."""
        many = ("--schedules", str(self.arguments.schedules))
        yield _program("simulation", partial(programs.module, "tests.faults.fault_simulation", *many))
        mutants = ("--schedules", "0", "--mutants")
        yield _program(
            "simulation, mutants", partial(programs.module, "tests.faults.fault_simulation", *mutants)
        )

    def tests(self) -> Iterator[Row]:
        """What pytest runs, the slow ones included."""
        for harness, arguments in (
            ("hostile inputs, roles, slow peers", ("tests/attacks/hostile",)),
            (
                "schemathesis",
                ("-p", "tests.faults.stress.counted", "tests/unit/coordinator/http/test_conformance.py"),
            ),
        ):
            yield _program(harness, partial(programs.tests, *arguments))

    def fuzzing(self) -> Iterator[Row]:
        """Each reader of strangers' bytes."""
        seconds = str(self.arguments.fuzz_seconds)
        for target in TARGETS:
            fuzz = partial(programs.module, "tests.faults.stress.fuzz", target, "--seconds", seconds)
            row = _program(f"fuzzing: {target}", fuzz)
            row.done += " inputs"
            yield row


HARNESSES: dict[str, Callable[[Rack], Iterator[Row]]] = {
    "simulation": Rack.simulation,
    "crash-points": Rack.crash_points,
    "kills": Rack.random_kills,
    "replicas": Rack.two_replicas,
    "agents": Rack.real_agents,
    "network": Rack.networks,
    "tests": Rack.tests,
    "fuzz": Rack.fuzzing,
}


def main() -> None:
    """Run harnesses and print what they found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=20, help="at random moments, on each database")
    parser.add_argument("--fuzz-seconds", type=int, default=60, help="for each target")
    parser.add_argument("--only", default=",".join(HARNESSES), help=f"some of {', '.join(HARNESSES)}")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := set(names) - set(HARNESSES):
        parser.error(f"there is no harness {', '.join(sorted(unknown))}")
    console = Console()
    rows: list[Row] = []
    with PostgresServer(durable=True) as postgres, tempfile.TemporaryDirectory() as folder:
        rack = Rack(arguments, postgres, Path(folder))
        for name in names:
            for row in _shown(console, name, HARNESSES[name](rack)):
                rows.append(row)
                OUT.parent.mkdir(exist_ok=True)
                OUT.write_text(json.dumps([asdict(written) for written in rows], indent=1) + "\n", "utf-8")
    console.print(_table(rows))
    console.print(f"also in {OUT}")
    sys.exit(any(row.violations for row in rows))


def _shown(console: Console, name: str, rows: Iterator[Row]) -> Iterator[Row]:
    while True:
        with console.status(f"{name} …"):
            row = next(rows, None)
        if row is None:
            return
        verdict = f"VIOLATED: {row.failure}" if row.violations else "ok"
        console.print(f"{row.harness}: {row.done} in {row.seconds:.0f} s: {verdict}", highlight=False)
        yield row


def _table(rows: list[Row]) -> Table:
    table = Table(title="What was done to it, and what was violated")
    for column in ("harness", "done", "violations", "s"):
        table.add_column(column, justify="right" if column in ("violations", "s") else "left")
    for row in rows:
        table.add_row(row.harness, row.done, str(row.violations), f"{row.seconds:.0f}")
    return table


@contextmanager
def _judged(row: Row) -> Iterator[Row]:
    """Time a harness. What it finds wrong is a violation, and so is that it did not end: others go on."""
    began = time.monotonic()
    try:
        yield row
    except Exception as error:
        row.violations, row.failure = 1, "".join(traceback.format_exception(error))[-2000:]
        row.done = row.done or "did not end"
    row.seconds = time.monotonic() - began


def _program(harness: str, run: Callable[[], programs.Ran]) -> Row:
    began = time.monotonic()
    ran = run()
    failure = ran.output if ran.failed else ""
    return Row(harness, ran.done, int(ran.failed), time.monotonic() - began, failure)


def _ready(seconds: list[float]) -> str:
    """Print the seconds of each restart beside the expected ones, without a verdict."""
    return f"ready again in {max(seconds):.1f} s at most ({READY_GOAL_SECONDS})"


def _migrate(url: str) -> None:
    database = Database(url)
    migrate.upgrade(database)
    database.close()


if __name__ == "__main__":
    main()
