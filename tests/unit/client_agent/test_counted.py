"""Progress counts of long work: their times and texts."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from rich.console import Console

from client_agent.console_counts import DEFAULT_PACE, Pace, counted, counts_shown
from client_agent.data.load import load_examples
from client_agent.errors import DataInvalid
from client_agent.model.examples import Example, encode_example
from client_agent.model.loading import load_tokenizer

MODELS = Path(__file__).parents[3] / "examples/models"


def lines_of(seconds_per_item: float, items: int, pace: Pace = DEFAULT_PACE) -> list[str]:
    """Return the lines that counting items writes to a file."""
    clock, written = clock_of(seconds_per_item), io.StringIO()
    with counts_shown(Console(file=written), pace, clock.__next__):
        assert list(counted(range(items), "reading rows.jsonl", items)) == list(range(items))
    return written.getvalue().splitlines()


def clock_of(step: float) -> Iterator[float]:
    return count(0.0, step)


def test_count_prints_no_line_before_five_seconds() -> None:
    assert lines_of(0.001, 4000) == []


def test_lines_come_after_five_and_ten_seconds() -> None:
    assert lines_of(1.0, 30) == [f"reading rows.jsonl: {n} of 30" for n in (4, 14, 24)]


def test_count_of_following_work_continues_the_wait() -> None:
    clock, written = clock_of(1.0), io.StringIO()
    with counts_shown(Console(file=written), DEFAULT_PACE, clock.__next__):
        for activity in ("reading", "tokenising"):
            list(counted(range(3), activity))
    assert written.getvalue().splitlines() == ["tokenising: 0"]


def test_later_round_waits_again() -> None:
    times = iter([0.0, 1.0, 2.0, 100.0, 101.0, 102.0])
    written = io.StringIO()
    with counts_shown(Console(file=written), Pace(), times.__next__):
        for _ in range(2):
            list(counted(range(1), "tokenising"))
    assert not written.getvalue()


def test_terminal_shows_one_line_and_removes_it() -> None:
    clock, written = clock_of(1.0), io.StringIO()
    console = Console(file=written, force_terminal=True)
    with counts_shown(console, Pace(first=0), clock.__next__):
        list(counted(range(3), "reading", 3))
    assert "reading: 2 of 3" in written.getvalue()
    assert "\x1b[2K" in written.getvalue()


def test_rows_are_counted_until_an_error(tmp_path: Path) -> None:
    file, written = tmp_path / "rows.jsonl", io.StringIO()
    file.write_text("".join(json.dumps({"text": str(n)}) + "\n" for n in range(3)) + "{}\n")
    console = Console(file=written, force_terminal=True, width=200)
    with pytest.raises(DataInvalid), counts_shown(console, Pace(0, 0, 0)):
        load_examples(str(file))
    assert "rows.jsonl: 3" in written.getvalue()
    assert written.getvalue().endswith("\x1b[2K")


@pytest.mark.parametrize("text", ["abc" * 20, "ab<eos>" * 20 + "c"])
def test_long_texts_raise_no_warning_of_transformers(
    text: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(str(MODELS / "tiny-s"))
    tokenizer.model_max_length = 4
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    whole = encode_example(Example("a b ", text), tokenizer, 512)
    assert len(whole.ids) > 4
    assert not caplog.records
