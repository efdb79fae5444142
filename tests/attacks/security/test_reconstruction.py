"""Reconstruction error of another member's adapter: 0 is the adapter itself, 1 is no knowledge."""

from __future__ import annotations

import pytest

from benchmarks.reconstruction import CASES, main

EXACT = pytest.approx(0.0, abs=1e-5)
NO_KNOWLEDGE = 1.0


def is_near(error: float) -> object:
    return pytest.approx(error, abs=0.06)


@pytest.mark.parametrize(
    ("case", "errors"),
    [
        ("fedavg, two members", (EXACT, NO_KNOWLEDGE, NO_KNOWLEDGE)),
        ("fedavg, three members", (is_near(0.67), is_near(0.67), NO_KNOWLEDGE)),
        ("fedavg, four members", (is_near(0.77), is_near(0.77), is_near(0.77))),
        ("fedmosaic, two members", (EXACT, NO_KNOWLEDGE, NO_KNOWLEDGE)),
        ("fedmosaic, newcomer, one like its guess", (EXACT, NO_KNOWLEDGE, NO_KNOWLEDGE)),
        ("fedmosaic, newcomer, three like its guess", (is_near(0.77), is_near(0.77), is_near(0.77))),
        ("flora, two members", (EXACT, NO_KNOWLEDGE, NO_KNOWLEDGE)),
        ("flora, three members", (is_near(0.67), is_near(0.67), NO_KNOWLEDGE)),
        ("flora, four members", (is_near(0.78), is_near(0.78), is_near(0.78))),
        ("fedex_lora, two members", (EXACT, NO_KNOWLEDGE, NO_KNOWLEDGE)),
        ("fedex_lora, four members", (is_near(0.78), is_near(0.78), is_near(0.78))),
    ],
)
def test_the_reconstruction_error_matches_the_table(case: str, errors: tuple[object, ...]) -> None:
    assert tuple(CASES[case](least) for least in (1, 2, 3)) == errors


def test_an_absence_reveals_more_than_one_round() -> None:
    """What `min_voices` does not hold back: the difference of two rounds."""
    error = CASES["fedavg, five members, one absent then"](3)
    assert 0.2 < error < 0.7


def test_the_table_has_a_line_for_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(CASES)
