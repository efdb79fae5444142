"""Metrics on texts whose value is known."""

from __future__ import annotations

import pytest

from client_agent.data.metrics import METRICS, best, exact_match, f1, number, rouge_l


@pytest.mark.parametrize(
    ("metric", "generated", "reference", "value"),
    [
        (exact_match, " The  Cat.", "cat", 1.0),
        (exact_match, "a dog", "cat", 0.0),
        (f1, "the red cat", "a cat", 2 / 3),  # red cat / cat
        (f1, "dog", "cat", 0.0),
        (f1, "", "the", 1.0),
        (number, "It is 3.\n#### 1,003", "1003", 1.0),
        (number, "So 12 and then 7.0", "7", 1.0),
        (number, "none", "7", 0.0),
        (number, "#### -4", "4", 0.0),
        (rouge_l, "the cat sat", "the cat sat", 1.0),
        (rouge_l, "police killed the gunman", "police kill the gunman", 0.75),  # Lin 2004, section 3.1
        (rouge_l, "the gunman kill police", "police kill the gunman", 0.5),
        (rouge_l, "今日は晴れ", "今日は雨", 2 * 3 / 9),
        (rouge_l, "dog", "cat", 0.0),
    ],
)
def test_values(metric: object, generated: str, reference: str, value: float) -> None:
    assert callable(metric)
    assert metric(generated, reference) == pytest.approx(value)


def test_the_best_reference_counts() -> None:
    assert best(f1, "in 1702", ["1703", "in 1702"]) == 1.0


def test_all_metrics_are_in_the_unit_interval() -> None:
    for metric in METRICS.values():
        assert metric("x", "x 1") <= 1.0
