"""Group texts of similar length into batches whose memory is bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

TOKENS_PER_BATCH = 8192
"""Tokens of a batch without gradients, padding included.

The key-value cache of a generated batch is the largest part: .4 GiB for a model of 135 million parameters
(46 KiB per token), 4 GiB for 7 billion without grouped heads (512 KiB). A text longer than this is a batch of
its own.
"""

LOGITS_AT_ONCE = 2**25
"""Logits that are held at once, 128 MiB in float32: with 262,144 tokens in the vocabulary 128 positions."""


def grouped_by_length(lengths: Sequence[int], budget: int = TOKENS_PER_BATCH) -> Iterator[list[int]]:
    """Yield groups of indices, longest texts first, whose padded size is at most `budget` where possible."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        size = max(1, budget // max(1, lengths[order[start]]))
        yield order[start : start + size]
        start += size
