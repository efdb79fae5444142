"""Shared forward passes of texts with a common beginning: losses equal those per text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from client_agent.model.loading import BaseModel
from client_agent.model.tokens import Batch, TokenizedText
from client_agent.training import token_losses
from client_agent.training.token_losses import answer_losses, shared_rows


def text(ids: Sequence[int], answers: int) -> TokenizedText:
    return TokenizedText(
        tuple(ids), (False,) * (len(ids) - answers) + (True,) * answers, ((0, 0),) * len(ids)
    )


PROMPT = [7, 9, 11, 13]
OPTIONS = [
    text([*PROMPT, 5], 1),
    text([*PROMPT, 6], 1),
    text([*PROMPT, 8, 9, 10], 3),
    text([*PROMPT, 8, 9, 12], 3),
    text([*PROMPT, 8, 9, 10, 2], 4),
    text([*PROMPT, 5], 1),
    text([7, 9, 12, 13, 5], 1),
]


@pytest.mark.parametrize(
    ("texts", "rows"),
    [
        ([], []),
        (OPTIONS[:2], [{0, 1}]),
        (OPTIONS[:4], [{0, 1, 2, 3}]),
        (OPTIONS, [{0, 1, 2, 3, 4, 5}, {6}]),
        ([text([*PROMPT, 5, 2], 2), text([*PROMPT, 6, 2], 2)], [{0}, {1}]),
        (3 * [text([*PROMPT, 5, 2], 2)], [{0, 1, 2}]),
    ],
    ids=["none", "one-token", "prompt", "prompts", "apart", "equal"],
)
def test_text_that_begins_another_shares_its_row(texts: list[TokenizedText], rows: list[set[int]]) -> None:
    assert sorted((set(row.readers) for row in shared_rows(texts)), key=min) == rows


def test_shared_losses_equal_losses_per_text(
    each_architecture: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [answer_losses(each_architecture, [text])[0] for text in OPTIONS]
    batches: list[Batch] = []
    run = token_losses.hidden_states

    def counted(base: BaseModel, batch: Batch) -> torch.Tensor:
        batches.append(batch)
        return run(base, batch)

    monkeypatch.setattr(token_losses, "hidden_states", counted)
    together = answer_losses(each_architecture, OPTIONS)
    assert [len(batch.ids) for batch in batches] == [2]
    for shared, single in zip(together, alone, strict=True):
        torch.testing.assert_close(shared.losses, single.losses, rtol=1e-4, atol=1e-5)
        assert shared.matches == single.matches
