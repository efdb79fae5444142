"""Count a server's write transactions and statements by the function of the coordinator that makes them.

Statements that go to the driver directly, such as those of chunks of payloads, are not counted.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from sqlalchemy import Engine, event

from benchmarks import figures

TRANSACTIONS, STATEMENTS = "write transactions", "statements"
_ROOT = Path(__file__).parents[1]
_COORDINATOR = str(_ROOT / "coordinator")
_DATABASE = str(_ROOT / "coordinator" / "db")
_LARGEST = 12


class StatementCounts:
    """The counts of this process, of all engines, from `start` to `end`."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {TRANSACTIONS: Counter(), STATEMENTS: Counter()}
        self._is_over = False

    def start(self) -> None:
        # Sessions that only read are rolled back, so that each commit is that of a write.
        event.listen(Engine, "commit", lambda _: self._count(TRANSACTIONS))
        event.listen(Engine, "before_cursor_execute", lambda *_: self._count(STATEMENTS))

    def clear(self) -> None:
        for counts in self._counts.values():
            counts.clear()

    def end(self) -> None:
        """Count nothing from now on."""
        self._is_over = True

    def write(self, file: Path) -> None:
        """Write the counts as JSON: by kind, then by function."""
        file.write_text(json.dumps(self._counts), "utf-8")

    def _count(self, kind: str) -> None:
        if not self._is_over:
            self._counts[kind][_owner()] += 1


def read(file: Path) -> dict[str, dict[str, int]]:
    """Return the counts that a server wrote."""
    counts: dict[str, dict[str, int]] = json.loads(file.read_text("utf-8"))
    return counts


def show(console: Console, counts: dict[str, dict[str, int]], rounds: int) -> None:
    """Print what the functions with the most transactions and statements make in a round."""
    for kind, by_function in counts.items():
        largest = sorted(by_function.items(), key=lambda item: -item[1])[:_LARGEST]
        rows = [[name, count / rounds] for name, count in largest]
        each = sum(by_function.values()) / rounds
        figures.show(console, f"{each:.3g} {kind} per round", ["function", "per round"], rows)


def _owner() -> str:
    """Return the innermost function of the coordinator outside of its database package."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_COORDINATOR) and not code.co_filename.startswith(_DATABASE):
            return f"{Path(code.co_filename).relative_to(_ROOT)}:{code.co_qualname}"
        frame = frame.f_back
    return "other"
