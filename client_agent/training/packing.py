"""Pack several short texts into a row, each with its own positions and attention.

Without an attention mask transformers derives a block-diagonal mask from `position_ids` that restart, so a
token sees the tokens of its own text only, also within a sliding window. `require_packable` measures whether
that holds for a model, since it depends on its architecture and its attention kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from client_agent.errors import SettingsUnusable
from client_agent.model.forward import hidden_states
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET, Batch, TokenizedText, collate, pad_id

_LONG, _FIRST, _SECOND = 9, 5, 3
# The most that hidden states in a packed row may differ from those alone, as a share of the difference
# where a text is read as the continuation of another.
_MOST_IN_FLOAT32, _MOST_IN_FEWER_BITS = 1e-3, 0.2


def packed(texts: Sequence[TokenizedText], *, pad: int) -> Batch:
    """Batch texts in as few rows as the longest text's length allows, first fit in decreasing order.

    Padding at the end of a row consists of texts of one token without a target.
    """
    width = max(len(text.ids) for text in texts)
    rows: list[list[TokenizedText]] = []
    free: list[int] = []
    # First fit in decreasing order, at most a quarter above the fewest rows.
    for text in sorted(texts, key=lambda text: len(text.ids), reverse=True):
        length = len(text.ids)
        row = next((i for i, room in enumerate(free) if room >= length), None)
        if row is None:
            rows.append([])
            free.append(width)
            row = len(rows) - 1
        rows[row].append(text)
        free[row] -= length

    def padded(values: list[list[int]], filler: int) -> Tensor:
        return torch.tensor([row + [filler] * (width - len(row)) for row in values])  # (rows, width)

    return Batch(
        ids=padded([[i for text in row for i in text.ids] for row in rows], pad),
        attention=padded([[1 for text in row for _ in text.ids] for row in rows], 0),
        targets=padded([[i for text in row for i in text.targets()] for row in rows], NO_TARGET),
        # A restart of positions is where transformers separates the texts. Each padding token is a text of
        # its own.
        positions=padded([[i for text in row for i in range(len(text.ids))] for row in rows], 0),
    )


@torch.inference_mode()
def require_packable(base: BaseModel) -> None:
    """Compare the hidden states of a packed row with those of its texts alone.

    Raises:
        SettingsUnusable: they differ, so that packing would change what is learnt.
    """
    long, first, second = (_text(base, length) for length in (_LONG, _FIRST, _SECOND))
    pad = pad_id(base.tokenizer)

    def states(batch: Batch) -> Tensor:
        return hidden_states(base, batch.to(base.device)).float()

    span = slice(_FIRST, _FIRST + _SECOND)
    apart = states(collate([second], pad=pad))[0]
    in_a_row = states(packed([long, first, second], pad=pad))[1, span]  # the rows: long, first + second
    continued = states(collate([_joined(first, second)], pad=pad))[0, span]
    limit = _MOST_IN_FLOAT32 if base.model.dtype == torch.float32 else _MOST_IN_FEWER_BITS
    # Relative to what a mixture of both texts would change: rounding differs between models.
    share = float((in_a_row - apart).norm() / (continued - apart).norm())
    # `not <`, so that NaN is refused as well.
    if not share < limit:
        raise SettingsUnusable(
            f"packing: {base.architecture} does not keep the texts of a row apart (its hidden states differ "
            f"by {share:.2g} of what they would in one text); set packing to false"
        )


def _text(base: BaseModel, length: int) -> TokenizedText:
    ids = tuple((7 * length + 13 * i) % base.vocabulary for i in range(length))
    return TokenizedText(ids, (False,) + (True,) * (length - 1), ((0, 0),) * length)


def _joined(first: TokenizedText, second: TokenizedText) -> TokenizedText:
    return TokenizedText(first.ids + second.ids, first.answer + second.answer, first.spans + second.spans)
