"""Training examples: their text, their digest, and their tokens for a model."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, zip_longest
from typing import Any, cast

from transformers import PreTrainedTokenizerFast

from client_agent.console_counts import counted
from client_agent.errors import TextTooLong, TokenizerUnfit
from client_agent.model.chat import ASSISTANT, TrainingText, Turn, prompt_of, rendered_chat
from client_agent.model.comparable_text import folded
from client_agent.model.loading import BaseModel
from client_agent.model.special_text import Span, special_spans
from client_agent.model.tokens import TokenizedText, encode_learnt, pieces, tokens_of
from client_agent.settings import MetricName

__all__ = ["Example", "Task", "Turn"]


@dataclass(frozen=True, slots=True)
class Task:
    """A task of data of several: its name, its definition, and the categories that the data sort it into."""

    name: str
    definition: str
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, or the `turns` of a chat so far, and the answer to predict.

    Every assistant's turn among `turns` is learnt too. Without prompt and turns it is raw text.

    Attributes:
        options: candidates for `completion`, which is among them.
        ending: the end of every option; if it is not empty, options are compared by its likelihood alone.
        references: every text that is right as a generated answer; empty = `completion` alone.
        metrics: what the answer is scored by, beside its loss.
        tools: the tools of a chat, as JSON; empty = none.
        answer_fields: further keys of the answer's message, as `Turn.fields`: calls of tools, reasoning.
        place: the source and row that errors name; it is not part of the content.
        task: the task that it is of, in data of several; it is not part of the content.
    """

    prompt: str
    completion: str
    turns: tuple[Turn, ...] = ()
    options: tuple[str, ...] = ()
    ending: str = ""
    references: tuple[str, ...] = ()
    metrics: tuple[MetricName, ...] = ()
    tools: str = ""
    answer_fields: str = ""
    place: str = field(default="", compare=False, repr=False)
    task: Task | None = field(default=None, compare=False, repr=False)
    _prompt_key: str = field(default="", init=False, compare=False, repr=False)

    @property
    def key(self) -> str:
        """The digest of everything that is learnt or read."""
        content: list[object] = [self.prompt, [_content(turn) for turn in self.turns], self.completion]
        if self.tools or self.answer_fields:
            # Only where present, so that digests of plain examples stay what they were.
            content += [self.tools, self.answer_fields]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def prompt_key(self) -> str:
        """The digest of what is read before the answer, in the form of `folded`; of raw text, all of it.

        Examples with one prompt key are twins: of two of them in different sets, one betrays the other.
        """
        if not self._prompt_key:
            turns = [[turn.role, folded(turn.content), turn.fields] for turn in self.turns]
            answer = folded(self.completion) if self.is_raw_text else ""
            content = json.dumps([folded(self.prompt), turns, self.tools, answer])
            # Remembered: folding is slow, and each comparison of sets needs it.
            object.__setattr__(self, "_prompt_key", hashlib.sha256(content.encode()).hexdigest()[:32])
        return self._prompt_key

    @property
    def scored_by(self) -> tuple[str, ...]:
        """The digest, and what else the scores depend on."""
        return (
            self.key,
            *(repr(part) for part in (self.metrics, self.options, self.ending, self.references)),
            self.task.name if self.task is not None else "",
        )

    @property
    def is_raw_text(self) -> bool:
        return not self.prompt and not self.turns

    @property
    def chat(self) -> tuple[Turn, ...]:
        """The turns with the answer as the last one."""
        return (*self.turns, Turn(ASSISTANT, self.completion, self.answer_fields))


def _content(turn: Turn) -> list[object]:
    """Return what the digest of an example has of a turn; a plain turn's is role and content alone."""
    return [turn.role, turn.content, *([] if not turn.fields and turn.learnt else [turn.fields, turn.learnt])]


def probe_set(examples: Sequence[Example], count: int) -> list[Example]:
    """Return the `count` distinct examples with the smallest digests, in order of digest."""
    # By digest, so that the choice is the same in every round and on every machine.
    return sorted({e.key: e for e in examples}.values(), key=lambda e: e.key)[:count]


def encode_example(example: Example, tokenizer: PreTrainedTokenizerFast, max_length: int) -> TokenizedText:
    """Tokenise an example; the loss is on every answer and its end-of-turn token.

    Of a raw text longer than `max_length` this is the beginning; `encode_whole` has all of it.

    Raises:
        TokenizerUnfit: the example is a chat and the tokenizer has no chat template.
        DataInvalid: the template refuses the chat.
    """
    parts = learnt_parts(example, tokenizer)
    return encode_learnt(
        tokenizer,
        parts.text,
        parts.spans,
        max_length=max_length,
        special=not example.turns,
        closed=parts.closed,
        as_text=parts.as_text,
    )


def encode_whole(
    example: Example, tokenizer: PreTrainedTokenizerFast, max_length: int
) -> list[TokenizedText]:
    """Tokenise an example; a raw text longer than `max_length` becomes several, and nothing of it is lost.

    Raises: see `encode_example`.
    """
    if example.is_raw_text:
        return pieces(encode_example(example, tokenizer, sys.maxsize), tokenizer, max_length)
    return [encode_example(example, tokenizer, max_length)]


def encode_prompt(prompt: str, tokenizer: PreTrainedTokenizerFast, *, chat: bool) -> list[int]:
    """Tokenise a prompt as `encode_example` does; with `chat` the prompt is a user's turn.

    Raises:
        TokenizerUnfit: `chat` is set and the tokenizer has no chat template, or there is no token.
    """
    if chat:
        return encode_chat((Turn("user", prompt),), tokenizer)
    return _prompt_tokens(TrainingText(prompt, (), plain_as_text(prompt, tokenizer)), tokenizer, special=True)


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
    parts = learnt_parts(example, tokenizer)
    start = parts.answer
    before = tuple((begin, end) for begin, end in parts.as_text if end <= start)
    prompt = TrainingText(parts.text[:start], (), before)
    ids = _prompt_tokens(prompt, tokenizer, special=not example.turns)
    if len(ids) <= max_length:
        return ids
    head = ids[:1] if ids[0] == tokenizer.bos_token_id and max_length > 1 else []
    return [*head, *ids[len(ids) - max_length + len(head) :]]


def _prompt_tokens(prompt: TrainingText, tokenizer: PreTrainedTokenizerFast, *, special: bool) -> list[int]:
    ids, spans = tokens_of(tokenizer, prompt.text, special=special, as_text=prompt.as_text)
    while len(ids) > 1 and spans[len(ids) - 1][0] == spans[len(ids) - 1][1]:
        ids.pop()  # the tokenizer closes the text with a special token
    if not ids:
        raise TokenizerUnfit(
            "the prompt is empty, and this model's tokenizer adds no bos token; write a prompt"
        )
    return ids


def encode_all(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int
) -> list[TokenizedText]:
    """Tokenise examples, one text each; see `encode_example`."""
    return [encode_example(example, tokenizer, max_length) for example in examples]


def encode_for(base: BaseModel, examples: Sequence[Example], max_length: int) -> tuple[TokenizedText, ...]:
    """Tokenise examples for a model, in order, and check that each text fits its context.

    A raw text longer than `max_length` yields several texts, so there may be more texts than examples.

    Raises:
        TextTooLong: a text exceeds the model's context: learned positions end there, and rotary positions
            beyond it are untrained.
    """
    return _fitting(base, [text for pieces in _pieces(base, examples, max_length) for text in pieces])


def encode_some(
    base: BaseModel, examples: Sequence[Example], count: int, max_length: int
) -> tuple[TokenizedText, ...]:
    """Tokenise examples as `encode_for` does, and return at most `count` texts.

    The first text of every example comes first, then the second texts, and so on.

    Raises:
        TextTooLong: see `encode_for`.
    """
    # One text of each example first: a single long text must not fill the whole set.
    in_turn = zip_longest(*_pieces(base, examples, max_length))
    texts = (text for turn in in_turn for text in turn if text is not None)
    return _fitting(base, list(islice(texts, count)))


def count_cut(examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int) -> int:
    """Count the examples of which less than the whole text is read; a raw text is divided, not cut.

    Raises:
        TokenizerUnfit, DataInvalid: see `encode_example`.
    """
    return sum(
        len(encode_example(example, tokenizer, sys.maxsize).ids) > max_length
        for example in examples
        if not example.is_raw_text
    )


def encode_beginnings(
    base: BaseModel, examples: Sequence[Example], max_length: int
) -> tuple[TokenizedText, ...]:
    """Tokenise examples for a model, one text each: of a long raw text its beginning.

    Raises:
        TextTooLong: see `encode_for`.
    """

    texts: list[TokenizedText] = []
    for example in counted(examples, "tokenising examples", len(examples)):
        tokenised = partial(encode_all, [example], base.tokenizer, max_length)
        texts += base.tokens.get("beginning", example, max_length, tokenised)
    return _fitting(base, texts)


def _pieces(
    base: BaseModel, examples: Sequence[Example], max_length: int
) -> Iterator[tuple[TokenizedText, ...]]:
    for example in counted(examples, "tokenising examples", len(examples)):
        tokenised = partial(encode_whole, example, base.tokenizer, max_length)
        yield base.tokens.get("whole", example, max_length, tokenised)


def _fitting(base: BaseModel, texts: Sequence[TokenizedText]) -> tuple[TokenizedText, ...]:
    longest = max((len(text.ids) for text in texts), default=0)
    if longest > base.positions:
        raise TextTooLong(
            f"an example has {longest} tokens, and {base.slug} reads {base.positions} at most; ask the "
            f"operator to set training.max_length to {base.positions} or less, or use a model "
            "with a longer context"
        )
    return tuple(texts)


def learnt_parts(example: Example, tokenizer: PreTrainedTokenizerFast) -> TrainingText:
    """Return the whole text of an example as the model reads it, with the spans that it learns.

    Raises:
        TokenizerUnfit: the example is a chat and the tokenizer has no chat template.
        DataInvalid: the template refuses the chat, or does not render something of it.
    """
    if example.turns:
        return rendered_chat(example.chat, tokenizer, example.place, example.tools)
    start, text = len(example.prompt), example.prompt + example.completion
    return TrainingText(text, ((start, len(text)),), plain_as_text(text, tokenizer), answer=start)


def plain_as_text(text: str, tokenizer: PreTrainedTokenizerFast) -> tuple[Span, ...]:
    """Return the spans of a plain text that spell special tokens and are read as text.

    A text that begins or ends with a special token is a rendered chat, and its special tokens are tokens.
    """
    spans = special_spans(text, tokenizer)
    if not spans or not text[: spans[0][0]].strip() or not text[spans[-1][1] :].strip():
        return ()
    return tuple(spans)


def learnt_end(example: Example, tokenizer: PreTrainedTokenizerFast) -> str:
    """Return the last token of an example, which is learnt and may be in no text: the tokenizer's eos."""
    last = encode_example(example, tokenizer, sys.maxsize).ids[-1]
    return str(cast(Any, tokenizer).convert_ids_to_tokens(last))
