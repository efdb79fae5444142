"""Progress of the demo as lines: its own steps with the time, and what the agents log."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_LOGGED = re.compile(r"^\S+ \S+ (?:INFO|WARNING|ERROR) +(?P<text>.+)$")
_STEP = re.compile(r"step (?P<number>\d+)/(?P<total>\d+),")
_LOOK_SECONDS = 0.5


class Narrator:
    """Prints lines with the minutes since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last = ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def step(self, text: str) -> None:
        """Print a step of the demo, unless it is the one that was printed last."""
        if text != self._last:
            minutes, seconds = divmod(int(self.seconds), 60)
            print(f"[{minutes}:{seconds:02}] {text}", flush=True)
        self._last = text

    @contextmanager
    def following(self, folder: Path, names: Sequence[str]) -> Iterator[None]:
        """Print what the agents of some silos log, while the block runs."""
        done = threading.Event()
        thread = threading.Thread(target=self._follow, args=(folder, names, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _follow(self, folder: Path, names: Sequence[str], done: threading.Event) -> None:
        read = dict.fromkeys(names, 0)
        width = max(map(len, names))
        while True:
            last = done.wait(_LOOK_SECONDS)
            for name in names:
                file = folder / name / "agent.log"
                content = file.read_bytes()[read[name] :] if file.is_file() else b""
                whole, newline, _ = content.rpartition(b"\n")
                read[name] += len(whole) + len(newline)
                for text in logged(whole.decode(errors="replace")):
                    print(f"         {name:<{width}} | {text}", flush=True)
            if last:
                return


def logged(lines: str) -> list[str]:
    """Return the messages of log lines without time and level: of the steps of a round, half time and end."""
    matches = (_LOGGED.match(line) for line in lines.splitlines())
    return [match["text"] for match in matches if match is not None and not _is_between(match["text"])]


def _is_between(text: str) -> bool:
    """Whether a message is of a step that is neither in the middle nor the last."""
    step = _STEP.search(text)
    return step is not None and int(step["number"]) not in (int(step["total"]) // 2, int(step["total"]))
