"""The change of the loss on the same texts, and its standard error."""

from __future__ import annotations

import numpy as np
import pytest

from client_agent.training.text_losses import TextLoss, change_of_loss


def test_change_is_the_difference_of_means_per_token() -> None:
    before, after = [TextLoss(6.0, 2), TextLoss(2.0, 4)], [TextLoss(3.0, 2), TextLoss(2.0, 4)]
    change = change_of_loss(after, before)
    assert change is not None
    assert (change.value, change.count) == (pytest.approx(-0.5), 2)


def test_change_has_the_error_of_repeated_samples() -> None:
    random = np.random.default_rng(0)
    values, errors = [], []
    for _ in range(400):
        tokens = random.integers(1, 6, 50)
        hard = random.normal(5, 3, 50)  # the same for both models: paired, it is no noise
        before = [TextLoss(h * n, int(n)) for h, n in zip(hard, tokens, strict=True)]
        after = [TextLoss(t.total + random.normal(-0.2, 0.5) * t.tokens, t.tokens) for t in before]
        change = change_of_loss(after, before)
        assert change is not None
        values.append(change.value)
        errors.append(change.error)
    assert np.mean(values) == pytest.approx(-0.2, abs=0.02)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.1)


@pytest.mark.parametrize(
    ("after", "before"),
    [
        ([TextLoss(1, 1)], [TextLoss(1, 1)]),
        ([TextLoss(1, 1)] * 2, []),
        ([TextLoss(1, 1)] * 2, [TextLoss(1, 2)] * 2),
    ],
    ids=["one text", "nothing before", "other texts"],
)
def test_change_is_unknown_for_unpaired_texts(after: list[TextLoss], before: list[TextLoss]) -> None:
    assert change_of_loss(after, before) is None
