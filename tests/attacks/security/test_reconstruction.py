"""Reconstruction error of another member's adapter: 0 is the adapter itself, 1 is no knowledge."""

from __future__ import annotations

import pytest

from benchmarks.reconstruction import CASES, main

EXACT = pytest.approx(0.0, abs=1e-5)
NOTHING = 1.0


def near(error: float) -> object:
    return pytest.approx(error, abs=0.06)


@pytest.mark.parametrize(
    ("case", "errors"),
    [
        ("fedavg, two members", (EXACT, NOTHING, NOTHING)),
        ("fedavg, three members", (near(0.67), near(0.67), NOTHING)),
        ("fedavg, four members", (near(0.77), near(0.77), near(0.77))),
        ("fedmosaic, two members", (EXACT, NOTHING, NOTHING)),
        ("fedmosaic, newcomer, one like its guess", (EXACT, NOTHING, NOTHING)),
        ("fedmosaic, newcomer, three like its guess", (near(0.77), near(0.77), near(0.77))),
        ("flora, two members", (EXACT, NOTHING, NOTHING)),
        ("flora, three members", (near(0.67), near(0.67), NOTHING)),
        ("flora, four members", (near(0.78), near(0.78), near(0.78))),
        ("fedex_lora, two members", (EXACT, NOTHING, NOTHING)),
        ("fedex_lora, four members", (near(0.78), near(0.78), near(0.78))),
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
