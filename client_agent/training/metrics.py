"""Metrics of a generated answer against references: exact match, F1, ROUGE-L, number."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType

from client_agent.settings import MetricName

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d))")
_MARK = "####"
_WITHOUT_SPACES = re.compile(
    "[\u3040-\u30ff"  # kana
    "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f"  # Burmese
    "\u1780-\u17ff]"  # Khmer
)

Metric = Callable[[str, str], float]
"""Compares a generated text with one reference; in [0, 1]."""


def best(metric: Metric, generated: str, references: Sequence[str]) -> float:
    """Return the highest value over all references."""
    return max(metric(generated, reference) for reference in references)


def exact_match(generated: str, reference: str) -> float:
    """Return 1 if both are equal after SQuAD's normalisation (Rajpurkar et al. 2016, section 6.1)."""
    return float(_normalised(generated) == _normalised(reference))


def f1(generated: str, reference: str) -> float:
    """Return the harmonic mean of precision and recall over normalised words (ibid.).

    Text of a script without spaces is compared by characters.
    """
    words, expected = _normalised_words(generated), _normalised_words(reference)
    if not words or not expected:
        return float(words == expected)
    common = sum((Counter(words) & Counter(expected)).values())
    return 2 * common / (len(words) + len(expected))


def rouge_l(generated: str, reference: str) -> float:
    """Return the F-measure of the longest common subsequence of words (Lin 2004, section 3).

    Text of a script without spaces is compared by characters.
    """
    # With m and n words and a longest common subsequence of l, ROUGE-L is 2 l / (m + n); so is the similarity
    # by insertions and deletions, 1 - (m + n - 2 l) / (m + n).
    from rapidfuzz.distance import Indel

    words, expected = _words(generated), _words(reference)
    if not words or not expected:
        return float(words == expected)
    return float(Indel.normalized_similarity(words, expected))


def number(generated: str, reference: str) -> float:
    """Return 1 if the number after the last `####` of a generated text is the reference."""
    _, mark, answer = generated.rpartition(_MARK)
    value = _first_number(answer) if mark else None
    return float(value is not None and value == _first_number(reference))


GENERATED_METRICS: Mapping[MetricName, Metric] = MappingProxyType(
    {"exact_match": exact_match, "f1": f1, "rouge_l": rouge_l, "number": number}
)
"""The metrics that need a generated answer."""


def _normalised(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and repeated spaces.

    What would leave nothing is left out: the label "A" is no article, and "+" no punctuation.
    """
    lower = " ".join(text.lower().split())
    plain = "".join(character for character in lower if character not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", plain).split()) or " ".join(plain.split()) or lower


def _normalised_words(text: str) -> list[str]:
    """Split a normalised text at spaces, and words of scripts without spaces into characters."""
    words = _normalised(text).split()
    return [part for word in words for part in ((_WITHOUT_SPACES.search(word) and _words(word)) or [word])]


def _words(text: str) -> list[str]:
    """Split a text into runs of letters, marks and digits, and those without spaces into characters."""
    spaced = "".join(c if unicodedata.category(c)[0] in "LMN" else " " for c in text.lower())
    return [part for word in spaced.split() for part in (word if _WITHOUT_SPACES.search(word) else [word])]


def _first_number(text: str) -> Decimal | None:
    match = _NUMBER.search(text)
    return Decimal(match[0].replace(",", "")) if match is not None else None
