"""Metrics of a generated answer against references: exact match, F1, ROUGE-L, number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType

from client_agent.model.comparable_text import folded, number_of, parts_of, without_punctuation, words_of
from client_agent.settings import MetricName

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_MARK = "####"
COMPARISON = "texts 2"
"""The version of these metrics: stored scores of another version are computed again."""

Metric = Callable[[str, str], float]
"""Compares a generated text with one reference; in [0, 1]."""


def best(metric: Metric, generated: str, references: Sequence[str]) -> float:
    """Return the highest value over all references."""
    return max(metric(generated, reference) for reference in references)


def exact_match(generated: str, reference: str) -> float:
    """Return 1 if both are equal in lower case, without punctuation, articles and repeated spaces.

    This is SQuAD's normalisation (Rajpurkar et al. 2016, section 6.1) with three differences: texts are
    compared in Unicode's form NFC, numbers keep their sign and what joins their digits, and punctuation of
    all scripts is removed.
    """
    return float(_normalised(generated) == _normalised(reference))


def f1(generated: str, reference: str) -> float:
    """Return the harmonic mean of precision and recall over normalised words, see `exact_match`.

    Text of a script without spaces is compared by characters.
    """
    words, expected = _normalised_words(generated), _normalised_words(reference)
    if not words or not expected:
        return float(words == expected)
    common = sum((Counter(words) & Counter(expected)).values())
    return 2 * common / (len(words) + len(expected))


def rouge_l(generated: str, reference: str) -> float:
    """Return the F-measure of the longest common subsequence of words and numbers (Lin 2004, section 3).

    Text of a script without spaces is compared by characters, and a text without words as it is.
    """
    # With m and n words and a longest common subsequence of l, ROUGE-L is 2 l / (m + n); so is the similarity
    # by insertions and deletions, 1 - (m + n - 2 l) / (m + n).
    from rapidfuzz.distance import Indel

    words, expected = words_of(generated), words_of(reference)
    if not words or not expected:
        return float(words == expected)
    return float(Indel.normalized_similarity(words, expected))


def number(generated: str, reference: str) -> float:
    """Return 1 if the number behind the last `####` with a number is the reference; see `number_of`."""
    values = [number_of(part) for part in generated.split(_MARK)[1:]]
    value = next((value for value in reversed(values) if value is not None), None)
    return float(value is not None and value == reference_number(reference))


def reference_number(reference: str) -> Fraction | str | None:
    """Return the number of a reference: behind its last mark with a number, or the first without marks."""
    values = [number_of(part) for part in reference.split(_MARK)]
    return next((value for value in reversed(values) if value is not None), None)


GENERATED_METRICS: Mapping[MetricName, Metric] = MappingProxyType(
    {"exact_match": exact_match, "f1": f1, "rouge_l": rouge_l, "number": number}
)
"""The metrics that need a generated answer."""


def _normalised(text: str) -> str:
    """Return a text in the form that `exact_match` compares.

    What would leave nothing is left out: the label "A" is no article, and "+" no punctuation.
    """
    plain = without_punctuation(text)
    return " ".join(_ARTICLES.sub(" ", plain).split()) or plain or folded(text)


def _normalised_words(text: str) -> list[str]:
    """Split a normalised text at spaces, and words of scripts without spaces into characters."""
    return [part for word in _normalised(text).split() for part in parts_of(word)]
