"""Tokenise texts into batches.

Answer tokens are identified by character offsets. Padding is on the right, is masked and has no target.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from client_agent.errors import TokenizerUnfit
from client_agent.model.special_text import Span, encode_as_text
from client_agent.model.stop_tokens import ends_of
from client_agent.model.token_rows import has_row, require_rows

if TYPE_CHECKING:
    from client_agent.model.examples import Example


NO_TARGET = -100
Kind = Literal["whole", "beginning", "options", "question"]
"""What of an example is tokenised: all of it, one text of it, its options, or what precedes its answer."""
_MOST_ENTRIES = 2**20


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One text: token ids, an answer mask, and the character span [start, end) of each token."""

    ids: tuple[int, ...]
    answer: tuple[bool, ...]
    spans: tuple[tuple[int, int], ...]  # (0, 0) for special tokens

    def without_spans(self) -> TokenizedText:
        return TokenizedText(self.ids, self.answer, ())

    def targets(self) -> list[int]:
        """Return for each position the next token if it is an answer token, else NO_TARGET."""
        following = zip(self.ids[1:], self.answer[1:], strict=True)
        return [*(i if answer else NO_TARGET for i, answer in following), NO_TARGET]


def digest_of_texts(texts: Iterable[TokenizedText]) -> str:
    """Return the digest of the tokens of texts and of which of them are answers, hexadecimal."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(array("q", [len(text.ids), *text.ids]).tobytes() + bytes(text.answer))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded texts, all (n, t) int64; `targets` is the token to predict at each position.

    `positions` is set if a row holds several texts: the position of each token in its own text.
    """

    ids: Tensor
    attention: Tensor
    targets: Tensor
    positions: Tensor | None = None

    @property
    def tokens(self) -> int:
        return int(self.attention.sum())

    @property
    def answers(self) -> int:
        return int((self.targets != NO_TARGET).sum())

    def to(self, device: torch.device) -> Batch:
        positions = self.positions.to(device) if self.positions is not None else None
        return Batch(self.ids.to(device), self.attention.to(device), self.targets.to(device), positions)


def encode(
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    answer: str,
    *,
    max_length: int,
    special: bool = True,
    closed: bool = True,
) -> TokenizedText:
    """Tokenise prompt and answer as one text; see `encode_learnt`."""
    text = prompt + answer
    return encode_learnt(
        tokenizer, text, [(len(prompt), len(text))], max_length=max_length, special=special, closed=closed
    )


def encode_learnt(
    tokenizer: PreTrainedTokenizerFast,
    text: str,
    learnt: Sequence[tuple[int, int]],
    *,
    max_length: int,
    special: bool = True,
    closed: bool = True,
    as_text: Sequence[Span] = (),
) -> TokenizedText:
    """Tokenise a text whose character spans `learnt` are answers; the last one ends the text.

    A token belongs to an answer if it ends inside it. `special` adds the tokenizer's special tokens (bos);
    `closed` ends the last answer with eos, unless it ends with a special token or one that ends generation. A
    text of more than `max_length` tokens is truncated at its start, after bos; a last answer that leaves the
    text before it less than half of `max_length` is truncated at its end. `as_text`: spans that spell special
    tokens and are tokenised as the text that they are.

    Raises:
        TokenizerUnfit: the tokenizer has no end-of-sequence token, or yields no token to predict.
    """
    ids, spans = tokens_of(tokenizer, text, special=special, as_text=as_text)
    # By its end: a token that begins in the prompt and ends in the answer is the answer's first.
    is_answer = [any(begin < end <= stop for begin, stop in learnt) for _, end in spans]
    if closed:
        eos = _eos(tokenizer)
        # The template has ended the answer; a second end would be learnt as its continuation.
        if len(ids) > 1 and ids[-1] in ends_of(tokenizer):
            is_answer[-1] = True
        else:
            ids, spans, is_answer = [*ids, eos], [*spans, (0, 0)], [*is_answer, True]
    if not any(is_answer[1:]):
        border = learnt[-1][0]
        raise TokenizerUnfit(
            "the tokenizer merges prompt and answer into one token "
            f"({text[:border][-20:]!r} + {text[border:][:20]!r}); "
            "end the prompt with a separator such as a line break"
        )
    keep = _truncated(ids, is_answer, max_length, tokenizer.bos_token_id)
    return TokenizedText(
        tuple(ids[i] for i in keep), tuple(is_answer[i] for i in keep), tuple(spans[i] for i in keep)
    )


def pieces(whole: TokenizedText, tokenizer: PreTrainedTokenizerFast, max_length: int) -> list[TokenizedText]:
    """Divide a tokenised raw text, all of which is learnt, into pieces of at most `max_length` tokens.

    Every token is a target exactly once. A later piece begins with bos if the tokenizer adds it, else with
    the last token of the piece before, because the first target needs a token before it.
    """
    starts_with_bos = whole.ids[0] == tokenizer.bos_token_id
    parts = []
    for start in range(1, len(whole.ids), max_length - 1):
        # The first target needs a token before it.
        lead, part = 0 if starts_with_bos else start - 1, slice(start, start + max_length - 1)
        parts.append(
            TokenizedText(
                (whole.ids[lead], *whole.ids[part]),
                (False, *whole.answer[part]),
                (whole.spans[lead], *whole.spans[part]),
            )
        )
    return parts


def tokens_of(
    tokenizer: PreTrainedTokenizerFast, text: str, *, special: bool, as_text: Sequence[Span] = ()
) -> tuple[list[int], list[Span]]:
    """Return the ids of a text's tokens and their character spans, (0, 0) for tokens without text.

    `special` adds the tokenizer's special tokens, but no second bos before a text that begins with it, as a
    rendered chat does.

    Raises:
        TokenizerUnfit: the model has no row for one of them.
    """
    if as_text:
        coded_ids, coded_spans = encode_as_text(text, tokenizer, as_text, special=special)
    else:
        # verbose=False: how long a text may be is checked against the model, where it is trained
        coded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True, verbose=False)
        coded_ids, coded_spans = (
            cast(list[int], coded["input_ids"]),
            cast(list[Span], coded["offset_mapping"]),
        )
    ids = [int(i) for i in coded_ids]
    # Some tokenizers give an empty span elsewhere to tokens without text.
    spans = [(int(s), int(e)) if e > s else (0, 0) for s, e in coded_spans]
    require_rows(tokenizer, text, ids, spans)
    if special and _adds_second_bos(ids, spans, text, tokenizer.bos_token_id):
        ids, spans = ids[1:], spans[1:]
    return ids, spans


def _adds_second_bos(ids: Sequence[int], spans: Sequence[Span], text: str, bos: object) -> bool:
    """Whether a tokenizer has added bos to a text that begins with it, perhaps after white space."""
    if len(ids) < 2 or ids[0] != bos or spans[0] != (0, 0):
        return False
    first = next((i for i in range(1, len(ids)) if text[slice(*spans[i])].strip()), 0)
    return first > 0 and ids[first] == bos


def _eos(tokenizer: PreTrainedTokenizerFast) -> int:
    eos = tokenizer.eos_token_id
    if not isinstance(eos, int):
        raise TokenizerUnfit("the tokenizer has no eos token; set eos_token in its tokenizer_config.json")
    return eos


def _truncated(ids: Sequence[int], answer: Sequence[bool], limit: int, bos: object) -> list[int]:
    """Return the positions that remain with room for `limit` >= 2 tokens."""
    if len(ids) <= limit:
        return list(range(len(ids)))
    first = _last_answer(answer)
    # Half of the room at most for the answer: without a question it teaches nothing.
    before = min(first, max(limit - (len(ids) - first), limit // 2))
    start = first - before
    head = [0] if start and before > 1 and ids[0] == bos else []
    return [*head, *range(start + len(head), min(len(ids), first + limit - before))]


def _last_answer(answer: Sequence[bool]) -> int:
    """Return the first position of the last run of answer tokens."""
    position = len(answer) - 1
    while not answer[position]:
        position -= 1
    while position and answer[position - 1]:
        position -= 1
    return position


def collate(
    texts: Sequence[TokenizedText],
    *,
    pad: int,
    length: int | None = None,
    targets: Sequence[Sequence[int]] | None = None,
) -> Batch:
    """Batch texts, padded on the right to the longest or to `length`.

    `targets` replaces the texts' next tokens as targets.
    """
    width = max(len(text.ids) for text in texts) if length is None else length

    def padded(rows: list[list[int]], filler: int) -> Tensor:
        return torch.tensor([row + [filler] * (width - len(row)) for row in rows])  # (n, t)

    return Batch(
        ids=padded([list(text.ids) for text in texts], pad),
        attention=padded([[1] * len(text.ids) for text in texts], 0),
        targets=padded([list(row) for row in targets or [x.targets() for x in texts]], NO_TARGET),
    )


def pad_id(tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the padding id; any id is valid, since padding is masked and has no target."""
    for candidate in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if isinstance(candidate, int) and has_row(tokenizer, candidate):
            return candidate
    return 0


def by_token(activation: Tensor, batch: Batch) -> Tensor:
    """Return an activation as (n, t, d); some layers of experts read the tokens of all texts in one row."""
    return activation.reshape(*batch.ids.shape, activation.shape[-1])


class TokenStore:
    """Tokens by kind, example and length; the oldest entries are forgotten first.

    Character spans are left out: they need most of the memory, and only alignment reads them.
    """

    def __init__(self) -> None:
        self._texts: dict[tuple[Kind, int, Example], tuple[TokenizedText, ...]] = {}

    def get(
        self, kind: Kind, example: Example, max_length: int, tokenised: Callable[[], list[TokenizedText]]
    ) -> tuple[TokenizedText, ...]:
        """Return the tokens of an example; `tokenised` computes them the first time."""
        key = kind, max_length, example
        texts = self._texts.get(key)
        if texts is None:
            # Spans would be most of the memory, and only alignment reads them.
            texts = self._texts[key] = tuple(text.without_spans() for text in tokenised())
            if len(self._texts) > _MOST_ENTRIES:
                # The oldest: a dict keeps its order.
                del self._texts[next(iter(self._texts))]
        return texts
