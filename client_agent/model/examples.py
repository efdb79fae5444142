"""Training examples: their text, their digest, and their tokens for a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, zip_longest
from typing import cast

from transformers import PreTrainedTokenizerFast

from client_agent.errors import TextTooLong, TokenizerUnfit
from client_agent.model.chat import Learnt, Turn, prompt_of, rendered_chat
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import Encoded, encode, encode_learnt, encode_pieces
from client_agent.settings import MetricName

__all__ = ["Example", "Turn"]


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, or the `turns` of a chat so far, and the answer to predict.

    Every assistant's turn among `turns` is learnt too. Without prompt and turns it is raw text.

    Attributes:
        options: candidates for `completion`, which is among them.
        ending: the end of every option; if it is not empty, options are compared by its likelihood alone.
        references: every text that is right as a generated answer; empty = `completion` alone.
        metrics: what the answer is scored by, beside its loss.
        place: the source and row that errors name; it is not part of the content.
    """

    prompt: str
    completion: str
    turns: tuple[Turn, ...] = ()
    options: tuple[str, ...] = ()
    ending: str = ""
    references: tuple[str, ...] = ()
    metrics: tuple[MetricName, ...] = ()
    place: str = field(default="", compare=False, repr=False)

    @property
    def key(self) -> str:
        turns = [[turn.role, turn.content] for turn in self.turns]
        return hashlib.sha256(json.dumps([self.prompt, turns, self.completion]).encode()).hexdigest()

    @property
    def scored_by(self) -> tuple[str, ...]:
        """The digest, and what else the scores depend on."""
        return (
            self.key,
            *(repr(part) for part in (self.metrics, self.options, self.ending, self.references)),
        )

    @property
    def is_raw_text(self) -> bool:
        return not self.prompt and not self.turns


def probe_set(examples: Sequence[Example], count: int) -> list[Example]:
    """Return the `count` distinct examples with the smallest digests, in order of digest."""
    return sorted({e.key: e for e in examples}.values(), key=lambda e: e.key)[:count]


def encode_example(example: Example, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Encoded:
    """Tokenise an example; the loss is on every answer and its end-of-turn token.

    Of a raw text longer than `max_length` this is the beginning; `encode_whole` has all of it.

    Raises:
        TokenizerUnfit: the example is a chat and the tokenizer has no chat template.
        DataInvalid: the template refuses the chat.
    """
    if not example.turns:
        return encode(tokenizer, example.prompt, example.completion, max_length=max_length)
    text = learnt_parts(example, tokenizer)
    return encode_learnt(tokenizer, text.text, text.spans, max_length=max_length, special=False)


def encode_whole(example: Example, tokenizer: PreTrainedTokenizerFast, max_length: int) -> list[Encoded]:
    """Tokenise an example; a raw text longer than `max_length` becomes several, and nothing of it is lost.

    Raises: see `encode_example`.
    """
    if example.is_raw_text:
        return encode_pieces(tokenizer, example.completion, max_length=max_length)
    return [encode_example(example, tokenizer, max_length)]


def encode_prompt(prompt: str, tokenizer: PreTrainedTokenizerFast, *, chat: bool) -> list[int]:
    """Tokenise a prompt as `encode_example` does; with `chat` the prompt is a user's turn.

    Raises:
        TokenizerUnfit: `chat` is set and the tokenizer has no chat template, or there is no token.
    """
    if chat:
        return encode_chat((Turn("user", prompt),), tokenizer)
    return _prompt_tokens(prompt, tokenizer, special=True)


def encode_chat(turns: Sequence[Turn], tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Tokenise the turns of a chat up to where the assistant's next answer begins.

    Raises:
        TokenizerUnfit: the tokenizer has no chat template.
        DataInvalid: the template refuses the chat.
    """
    return _prompt_tokens(prompt_of(turns, tokenizer), tokenizer, special=False)


def encode_question(example: Example, tokenizer: PreTrainedTokenizerFast, max_length: int) -> list[int]:
    """Tokenise what the model reads before an example's answer, truncated at its start, after bos.

    Raises:
        TokenizerUnfit: see `encode_prompt`.
    """
    prompt, _ = rendered(example, tokenizer)
    ids = _prompt_tokens(prompt, tokenizer, special=not example.turns)
    if len(ids) <= max_length:
        return ids
    head = ids[:1] if ids[0] == tokenizer.bos_token_id and max_length > 1 else []
    return [*head, *ids[len(ids) - max_length + len(head) :]]


def _prompt_tokens(text: str, tokenizer: PreTrainedTokenizerFast, *, special: bool) -> list[int]:
    coded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
    ids = [int(i) for i in cast(list[int], coded["input_ids"])]
    spans = cast(list[tuple[int, int]], coded["offset_mapping"])
    while len(ids) > 1 and spans[len(ids) - 1][0] == spans[len(ids) - 1][1]:
        ids.pop()  # the tokenizer closes the text with a special token
    if not ids:
        raise TokenizerUnfit(
            "the prompt is empty, and this model's tokenizer adds no bos token; write a prompt"
        )
    return ids


def encode_all(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int
) -> list[Encoded]:
    """Tokenise examples, one text each; see `encode_example`."""
    return [encode_example(example, tokenizer, max_length) for example in examples]


def encode_for(base: BaseModel, examples: Sequence[Example], max_length: int) -> tuple[Encoded, ...]:
    """Tokenise examples for a model, in order, and check that each text fits its context.

    A raw text longer than `max_length` yields several texts, so there may be more texts than examples.

    Raises:
        TextTooLong: a text exceeds the model's context: learned positions end there, and rotary positions
            beyond it are untrained.
    """
    return _fitting(base, [text for pieces in _pieces(base, examples, max_length) for text in pieces])


def encode_some(
    base: BaseModel, examples: Sequence[Example], count: int, max_length: int
) -> tuple[Encoded, ...]:
    """Tokenise examples as `encode_for` does, and return at most `count` texts.

    The first text of every example comes first, then the second texts, and so on.

    Raises:
        TextTooLong: see `encode_for`.
    """
    in_turn = zip_longest(*_pieces(base, examples, max_length))
    texts = (text for turn in in_turn for text in turn if text is not None)
    return _fitting(base, list(islice(texts, count)))


def encode_beginnings(base: BaseModel, examples: Sequence[Example], max_length: int) -> tuple[Encoded, ...]:
    """Tokenise examples for a model, one text each: of a long raw text its beginning.

    Raises:
        TextTooLong: see `encode_for`.
    """

    texts: list[Encoded] = []
    for example in examples:
        tokenised = partial(encode_all, [example], base.tokenizer, max_length)
        texts += base.tokens.get("beginning", example, max_length, tokenised)
    return _fitting(base, texts)


def _pieces(base: BaseModel, examples: Sequence[Example], max_length: int) -> Iterator[tuple[Encoded, ...]]:
    for example in examples:
        tokenised = partial(encode_whole, example, base.tokenizer, max_length)
        yield base.tokens.get("whole", example, max_length, tokenised)


def _fitting(base: BaseModel, texts: Sequence[Encoded]) -> tuple[Encoded, ...]:
    longest = max((len(text.ids) for text in texts), default=0)
    if longest > base.positions:
        raise TextTooLong(
            f"an example has {longest} tokens, and {base.slug} reads {base.positions} at most; ask the "
            f"operator to set training.max_length to {base.positions} or less, or use a model "
            "with a longer context"
        )
    return tuple(texts)


def learnt_parts(example: Example, tokenizer: PreTrainedTokenizerFast) -> Learnt:
    """Return the whole text of an example as the model reads it, with the spans that it learns.

    Raises:
        TokenizerUnfit: the example is a chat and the tokenizer has no chat template.
        DataInvalid: the template refuses the chat.
    """
    if example.turns:
        turns = (*example.turns, Turn("assistant", example.completion))
        return rendered_chat(turns, tokenizer, example.place)
    start = len(example.prompt)
    return Learnt(example.prompt + example.completion, ((start, start + len(example.completion)),))


def rendered(example: Example, tokenizer: PreTrainedTokenizerFast) -> tuple[str, str]:
    """Return the text before the last answer, and the last answer.

    Raises: see `learnt_parts`.
    """
    parts = learnt_parts(example, tokenizer)
    start = parts.spans[-1][0]
    return parts.text[:start], parts.text[start:]
