"""Metrics on texts whose value is known."""

from __future__ import annotations

import pytest

from client_agent.training.metrics import (
    GENERATED_METRICS,
    Metric,
    best,
    exact_match,
    f1,
    number,
    rouge_l,
)


@pytest.mark.parametrize(
    ("metric", "generated", "reference", "value"),
    [
        (exact_match, " The  Cat.", "cat", 1.0),
        (exact_match, "a dog", "cat", 0.0),
        (exact_match, "", "A", 0.0),  # a label, which is no article
        (exact_match, "The", "A", 0.0),
        (exact_match, " a", "A", 1.0),
        (exact_match, "-", "+", 0.0),
        (exact_match, "theatre", "atre", 0.0),
        (f1, "the red cat", "a cat", 2 / 3),  # red cat / cat
        (f1, "cat cat", "cat", 2 / 3),  # a word counts as often as in both
        (f1, "dog", "cat", 0.0),
        (f1, "", "the", 0.0),
        (f1, "", "cat", 0.0),
        (f1, "今日は晴れ", "今日は雨", 2 * 3 / 9),
        (f1, "今日は、晴れ。", "今日は晴れ", 1.0),
        (f1, "答えは The Cat", "答えは cat", 1.0),
        (f1, "ห้องสมุด", "ห้องครัว", 2 * 4 / 16),  # marks of vowels and tones count too
        (f1, "・", "。", 0.0),
        (number, "It is 3.\n#### 1,003", "1003", 1.0),
        (number, "#### 7.0 apples", "7", 1.0),
        (number, "#### .5", "0.5", 1.0),
        (number, "#### $18\n\nQuestion: 5 + 5", "18", 1.0),
        (number, "#### 5\n#### 6", "6", 1.0),
        (number, "So it is 7", "7", 0.0),
        (number, "#### none", "7", 0.0),
        (number, "#### -4", "4", 0.0),
        (number, "#### 12,5", "12", 0.0),
        (number, "#### 12,5", "12,5", 1.0),
        (number, "#### -$5", "-5", 1.0),
        (number, "#### $-5", "5", 0.0),
        (number, "#### US$ \N{MINUS SIGN}5", "-5", 1.0),
        (number, "#### -US$5", "-5", 1.0),
        (number, "#### - 5", "-5", 1.0),
        (number, "#### 1 003", "1003", 1.0),
        (number, "#### 1\N{NARROW NO-BREAK SPACE}003", "1003", 1.0),
        (number, "#### 1'003", "1003", 1.0),
        (number, "#### 1,00,000", "100000", 1.0),
        (number, "#### 1 000 000,5", "1", 0.0),
        (number, "#### 42 ####", "42", 1.0),
        (number, "#### 41\n#### 42\n#### none", "42", 1.0),
        (number, "42 ####", "42", 0.0),
        (number, "#### 1/2", "1", 0.0),
        (number, "#### 1/2", "0.5", 1.0),
        (number, "#### 1 1/2", "1.5", 1.0),
        (number, "#### 2\N{VULGAR FRACTION ONE HALF}", "2.5", 1.0),
        (number, "#### 3.5e6", "3,500,000", 1.0),
        (number, "#### 3.5 million", "3.5", 0.0),
        (number, "#### 1e999999999", "1", 0.0),
        (number, "#### 10\N{SUPERSCRIPT TWO}", "10", 0.0),
        (number, "#### 50%", "50", 1.0),  # units are not compared
        (number, "#### Rs.500", "500", 1.0),
        (number, "#### 12:30", "12", 0.0),
        (number, "#### 12:30.", "12:30", 1.0),
        (number, "#### 2024-01-02", "2024", 0.0),
        (number, "#### 8 - 5 = 3", "8", 0.0),
        (number, "#### 18\n- 5 apples", "18", 1.0),
        (number, "#### " + "9" * 5000, "9", 0.0),
        (number, "#### 7", "3 + 4 = 7\n#### 7", 1.0),  # a whole answer as its own reference
        (exact_match, "cafe\N{COMBINING ACUTE ACCENT}", "caf\N{LATIN SMALL LETTER E WITH ACUTE}", 1.0),
        (f1, "cafe\N{COMBINING ACUTE ACCENT}", "caf\N{LATIN SMALL LETTER E WITH ACUTE}", 1.0),
        (rouge_l, "cafe\N{COMBINING ACUTE ACCENT}", "caf\N{LATIN SMALL LETTER E WITH ACUTE}", 1.0),
        (exact_match, "x\N{SUPERSCRIPT TWO}", "x2", 0.0),
        (exact_match, "co\N{SOFT HYPHEN}op", "coop", 1.0),
        (exact_match, "don\N{RIGHT SINGLE QUOTATION MARK}t", "don't", 1.0),
        (exact_match, "今日は晴れ。", "今日は晴れ", 1.0),
        (exact_match, "-5", "5", 0.0),
        (exact_match, "-$5", "\N{MINUS SIGN}$5", 1.0),
        (exact_match, "1.5", "15", 0.0),
        (exact_match, ".5", "0.5", 1.0),
        (exact_match, "1,000", "1000", 1.0),
        (exact_match, "1/2", "12", 0.0),
        (exact_match, "10:30", "1030", 0.0),
        (exact_match, "1999\N{EN DASH}2003", "1999 - 2003", 1.0),
        (exact_match, "covid-19", "covid19", 1.0),
        (exact_match, "It is 5.", "it is 5", 1.0),
        (f1, "it is -5", "it is 5", 2 / 3),
        (f1, "1.5倍", "15倍", 0.5),
        (rouge_l, "it is -5", "it is 5", 2 / 3),
        (rouge_l, "1.5", "1 5", 0.0),
        (rouge_l, "+", "-", 0.0),
        (rouge_l, "\N{GRINNING FACE}", "\N{CRYING FACE}", 0.0),
        (rouge_l, "+", "+", 1.0),
        (rouge_l, "", "?", 0.0),
        (rouge_l, "The cat sat.", "the cat sat", 1.0),
        (rouge_l, "police killed the gunman", "police kill the gunman", 0.75),  # Lin 2004, section 3.1
        (rouge_l, "the gunman kill police", "police kill the gunman", 0.5),
        (rouge_l, "a well-known fact", "well known facts", 4 / 7),
        (rouge_l, "今日は晴れ", "今日は雨", 2 * 3 / 9),
        (rouge_l, "हिन्दी भाषा", "हिन्दी पाठ", 0.5),  # words whose vowels are marks
        (rouge_l, "dog", "cat", 0.0),
        (rouge_l, "", "cat", 0.0),
        (rouge_l, "...", "?", 0.0),
    ],
)
def test_metrics_have_their_known_values(
    metric: Metric, generated: str, reference: str, value: float
) -> None:
    assert metric(generated, reference) == pytest.approx(value)


def test_best_reference_counts() -> None:
    assert best(f1, "in 1702", ["1703", "in 1702"]) == 1.0
    references = ["the gunman kill police", "police killed the gunman"]
    assert best(rouge_l, "police kill the gunman", references) == 0.75  # of 0.5 and 0.75


@pytest.mark.parametrize("metric", GENERATED_METRICS.values())
@pytest.mark.parametrize("generated", ["", "####", "#### 1", "x 1", "\N{SNOWMAN} \N{COMBINING ACUTE ACCENT}"])
def test_metrics_are_in_the_unit_interval(metric: Metric, generated: str) -> None:
    assert 0 <= metric(generated, "x 1") <= 1
