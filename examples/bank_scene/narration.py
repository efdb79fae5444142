"""The timeline of a scene, printed as it happens."""

from __future__ import annotations

import time
from collections.abc import Sequence

from examples.bank_scene.record import Kill, Record


class Narrator:
    """Prints a line for each round and each event, with the minutes since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def enrolling(self, names: Sequence[str], after: int) -> None:
        when = f"after round {after}" if after else "at the beginning"
        self._say(f"{when} {len(names)} join: {', '.join(names)}")

    def leaving(self, names: Sequence[str], after: int) -> None:
        self._say(f"after round {after} {len(names)} leave: {', '.join(names)}")

    def killed(self, kill: Kill) -> None:
        phase = "" if kill.phase == "coordinator" else f" {kill.phase}"
        self._say(
            f"round {kill.round}: {kill.name} (process {kill.process}) is killed{phase}, and started again "
            f"(process {kill.next_process}); {kill.progress}"
        )

    def published(self, record: Record, number: int) -> None:
        """Print the experts that each group used in a round, and the changes of the bank after it."""
        for line in lines_of(record, number):
            self._say(line)

    def _say(self, line: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        print(f"{minutes:3d}:{seconds:02d}  {line}", flush=True)


def lines_of(record: Record, number: int) -> list[str]:
    """Return the lines of a round: counts, choices of each group, and changes with their reasons."""
    facts = record.facts(number)
    counts = next(entry for entry in record.bank.rounds if entry.round == number)
    groups = "; ".join(f"{group} {_shares(record, group, number)}" for group in record.present(number))
    drawn = ", drawn at random" if record.is_exploring(number) else ""
    first = (
        f"round {number}: {facts.counted} members in {facts.seconds:.0f} s, {counts.rejects} reject all; "
        f"expert x silos{drawn}: {groups}"
    )
    events = [
        f"    expert {event.expert} {event.change}"
        + (f" into {event.peer}" if event.change == "merged" else "")
        + f" after round {number}: {event.reason}"
        for event in record.bank.events
        if event.round == number
    ]
    return [first, *events]


def _shares(record: Record, group: str, number: int) -> str:
    shares = record.experts_of(group, number).items()
    return " ".join(f"{expert}x{silos}" for expert, silos in shares)
