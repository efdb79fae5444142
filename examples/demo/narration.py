"""Progress of the demo as lines: its own steps with the time, and what the agents log."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from studies.interrupts import is_stopping
from studies.remaining_time import Schedule, every_minute

_LOGGED = re.compile(r"^\S+ \S+ (?:INFO|WARNING|ERROR) +(?P<text>.+)$")
_STEP = re.compile(r"round (?P<round>\d+): step (?P<number>\d+)/(?P<total>\d+),")
_SILO_WARNING = re.compile(r"validation examples are too few")
"""Messages that every silo logs alike, and that are printed once."""
_LOOK_SECONDS = 0.5
_SILENT_SECONDS = 30.0


class Narrator:
    """Prints lines with the minutes since the start, and every minute how long the whole still takes."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._began = time.monotonic()
        self._printed = self._began
        self._last = ""
        self._hidden = ""
        self._of_every_silo: set[str] = set()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def step(self, text: str) -> None:
        """Print a step of the demo, unless it is the one that was printed last."""
        if text != self._last:
            self._print(text)
        self._last = text

    def _print(self, text: str) -> None:
        minutes, seconds = divmod(int(self.seconds), 60)
        self._line(f"[{minutes}:{seconds:02}] {text}")

    def _line(self, text: str) -> None:
        if is_stopping():
            return
        print(text, flush=True)
        self._printed, self._hidden = time.monotonic(), ""

    def break_silence(self) -> None:
        """Print the newest step of a silo, if nothing was printed for half a minute."""
        if self._hidden and time.monotonic() - self._printed > _SILENT_SECONDS:
            self._print(self._hidden)

    @contextmanager
    def counting_down(self) -> Iterator[None]:
        """Print every minute how long the whole still takes, while the block runs."""
        self.step(self.schedule.opening())
        with (
            every_minute(lambda: self._print(self.schedule.line())),
            every_minute(self.break_silence, seconds=_LOOK_SECONDS),
        ):
            yield

    @contextmanager
    def following(self, folder: Path, names: Sequence[str], rounds: int) -> Iterator[None]:
        """Print what the agents of some silos log, while the block runs; each trains for some rounds."""
        done = threading.Event()
        thread = threading.Thread(target=self._follow, args=(folder, names, rounds, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _follow(self, folder: Path, names: Sequence[str], rounds: int, done: threading.Event) -> None:
        read = dict.fromkeys(names, 0)
        shares = dict.fromkeys(names, 0.0)
        while True:
            last = done.wait(_LOOK_SECONDS)
            for name in names:
                file = folder / name / "agent.log"
                content = file.read_bytes()[read[name] :] if file.is_file() else b""
                whole, newline, _ = content.rpartition(b"\n")
                read[name] += len(whole) + len(newline)
                lines = whole.decode(errors="replace")
                if steps := list(_STEP.finditer(lines)):
                    self._hidden = f"{name}: {steps[-1][0].removesuffix(',')}"
                shares[name] = max([shares[name], *(share / rounds for share in rounds_done(lines))])
                self.log(name, logged(lines), max(map(len, names)))
            self.schedule.reach(sum(shares.values()) / len(shares))
            if last:
                return

    def log(self, name: str, texts: Sequence[str], width: int) -> None:
        """Print messages of a silo; those that every silo logs only once."""
        for text in texts:
            if _SILO_WARNING.search(text):
                if text not in self._of_every_silo:
                    self._line(f"         {'all silos':<{width}} | {text}")
                self._of_every_silo.add(text)
            else:
                self._line(f"         {name:<{width}} | {text}")


def rounds_done(lines: str) -> Iterator[float]:
    """Yield after which share of how many rounds a silo logged each training step."""
    for step in _STEP.finditer(lines):
        yield int(step["round"]) - 1 + int(step["number"]) / int(step["total"])


def logged(lines: str) -> list[str]:
    """Return the messages of log lines without time and level: of the steps of a round, half time and end."""
    matches = (_LOGGED.match(line) for line in lines.splitlines())
    return [match["text"] for match in matches if match is not None and not _is_between(match["text"])]


def _is_between(text: str) -> bool:
    """Whether a message is of a step that is neither in the middle nor the last."""
    step = _STEP.search(text)
    return step is not None and int(step["number"]) not in (int(step["total"]) // 2, int(step["total"]))
