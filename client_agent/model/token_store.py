"""The tokens of examples, stored with the model: every round and every score reads the same ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from client_agent.model.examples import Example
    from client_agent.model.tokens import Encoded

Kind = Literal["whole", "beginning", "options", "question"]
"""What of an example is tokenised: all of it, one text of it, its options, or what precedes its answer."""

_MOST_ENTRIES = 2**20


class TokenStore:
    """Tokens by kind, example and length; the oldest entries are forgotten first.

    Character spans are left out: they need most of the memory, and only alignment reads them.
    """

    def __init__(self) -> None:
        self._texts: dict[tuple[Kind, int, Example], tuple[Encoded, ...]] = {}

    def get(
        self, kind: Kind, example: Example, max_length: int, tokenised: Callable[[], list[Encoded]]
    ) -> tuple[Encoded, ...]:
        """Return the tokens of an example; `tokenised` computes them the first time."""
        key = kind, max_length, example
        texts = self._texts.get(key)
        if texts is None:
            texts = self._texts[key] = tuple(text.without_spans() for text in tokenised())
            if len(self._texts) > _MOST_ENTRIES:
                del self._texts[next(iter(self._texts))]
        return texts
