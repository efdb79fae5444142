"""Metrics of generated text against references: exact match, F1, ROUGE-L, the number at the end. Pure."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_MARK = "####"

Metric = Callable[[str, str], float]
"""Compares a generated text with one reference; in [0, 1]."""


def best(metric: Metric, generated: str, references: Sequence[str]) -> float:
    """Return the highest value over all references."""
    return max(metric(generated, reference) for reference in references)


def exact_match(generated: str, reference: str) -> float:
    """Return 1 if both are equal after SQuAD's normalisation (Rajpurkar et al. 2016, section 6.1)."""
    return float(normalised(generated) == normalised(reference))


def f1(generated: str, reference: str) -> float:
    """Return the harmonic mean of precision and recall over normalised words (ibid.)."""
    words, expected = normalised(generated).split(), normalised(reference).split()
    if not words or not expected:
        return float(words == expected)
    common = sum((Counter(words) & Counter(expected)).values())
    return 2 * common / (len(words) + len(expected))


def rouge_l(generated: str, reference: str) -> float:
    """Return the F-measure of the longest common subsequence of words (Lin 2004, section 3).

    Text of a script without spaces is compared by characters.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], tokenizer=_Words())
    return float(scorer.score(reference, generated)["rougeL"].fmeasure)


def number(generated: str, reference: str) -> float:
    """Return 1 if the number after the last `####`, or else the last number, equals the reference's."""
    value = _last_number(generated.rpartition(_MARK)[2])
    return float(value is not None and value == _last_number(reference))


METRICS: dict[str, Metric] = {"exact_match": exact_match, "f1": f1, "rouge_l": rouge_l, "number": number}


def normalised(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and repeated spaces."""
    plain = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", plain).split())


class _Words:
    """Tokenizer of `rouge_score`, whose own one drops every letter beyond ASCII."""

    def tokenize(self, text: str) -> list[str]:
        tokens: list[str] = []
        for word in re.findall(r"\w+", text.lower()):
            tokens += [word] if word.isascii() or not _is_unspaced(word) else list(word)
        return tokens


def _is_unspaced(word: str) -> bool:
    """Whether a word has a character of a script that is written without spaces."""
    return any(
        "\u3040" <= character <= "\u30ff"  # kana
        or "\u3400" <= character <= "\u9fff"  # Han
        or "\u0e00" <= character <= "\u0eff"  # Thai, Lao
        or "\u1780" <= character <= "\u17ff"  # Khmer
        for character in word
    )


def _last_number(text: str) -> Decimal | None:
    numbers = _NUMBER.findall(text)
    try:
        return Decimal(numbers[-1].replace(",", "")) if numbers else None
    except InvalidOperation:
        return None
