"""Compare the losses of two models on the same texts. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from schemas.messages.scores import Change


class TextLoss(NamedTuple):
    """The loss of a text: the sum over its answer tokens in nats, and the number of these tokens."""

    total: float
    tokens: int


def change_of_loss(after: Sequence[TextLoss], before: Sequence[TextLoss]) -> Change | None:
    """Compute the mean loss `after` minus that `before`, in nats per token, with its standard error.

    The losses are paired by text, so that what is hard for both models does not count as noise. The error is
    that of a ratio estimator (Cochran 1977, section 6.4): texts are sampled, and weigh by their tokens.

    Returns:
        None if the texts differ, or are fewer than two.
    """
    if len(after) < 2 or [text.tokens for text in after] != [text.tokens for text in before]:
        return None
    tokens = sum(text.tokens for text in after)
    changes = [later.total - earlier.total for later, earlier in zip(after, before, strict=True)]
    change = sum(changes) / tokens
    residuals = [value - change * text.tokens for value, text in zip(changes, after, strict=True)]
    variance = sum(residual**2 for residual in residuals) * len(after) / (len(after) - 1)
    return Change(value=change, error=sqrt(variance) / tokens, count=len(after))
