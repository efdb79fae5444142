"""Training examples: their text, their digest, and their tokens for a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from transformers import PreTrainedTokenizerFast

from client_agent.errors import TextTooLong, TokenizerUnfit
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import Encoded, encode

MetricName = Literal["option_accuracy", "exact_match", "f1", "rouge_l", "number"]
"""What an answer can be scored by, beside its loss; the names of `client_agent.training.evaluate`."""
_STORED_SETS = 64


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, or the `turns` of a chat so far, and the answer to predict.

    Attributes:
        options: candidates for `completion`, which is among them.
        references: every text that is right as a generated answer; empty = `completion` alone.
        metrics: what the answer is scored by, beside its loss.
    """

    prompt: str
    completion: str
    turns: tuple[Turn, ...] = ()
    options: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    metrics: tuple[MetricName, ...] = ()

    @property
    def key(self) -> str:
        turns = [[turn.role, turn.content] for turn in self.turns]
        return hashlib.sha256(json.dumps([self.prompt, turns, self.completion]).encode()).hexdigest()


def probe_set(examples: Sequence[Example], count: int) -> list[Example]:
    """Return the `count` distinct examples with the smallest digests, in order of digest."""
    return sorted({e.key: e for e in examples}.values(), key=lambda e: e.key)[:count]


def encode_example(example: Example, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Encoded:
    """Tokenise an example; the loss is on the answer and its end-of-sequence token.

    Raises:
        TokenizerUnfit: the example is a chat and the tokenizer has no chat template.
    """
    if not example.turns:
        return encode(tokenizer, example.prompt, example.completion, max_length=max_length)
    prompt, answer = rendered(example, tokenizer)
    return encode(tokenizer, prompt, answer, max_length=max_length, special=False)


def encode_prompt(prompt: str, tokenizer: PreTrainedTokenizerFast, *, chat: bool) -> list[int]:
    """Tokenise a prompt as `encode_example` does; with `chat` the prompt is a user's turn.

    Raises:
        TokenizerUnfit: `chat` is set and the tokenizer has no chat template, or there is no token.
    """
    text = _render_turns((Turn("user", prompt),), tokenizer) if chat else prompt
    return _prompt_tokens(text, tokenizer, special=not chat)


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
    return [encode_example(example, tokenizer, max_length) for example in examples]


def encode_for(base: BaseModel, examples: Sequence[Example], max_length: int) -> tuple[Encoded, ...]:
    """Tokenise examples for a model, and check that each fits its context.

    The result is stored with the model, and returned for the same examples again. Character spans are left
    out: they need most of the memory, and only alignment reads them.

    Raises:
        TextTooLong: an example exceeds the model's context: learned positions end there, and rotary positions
            beyond it are untrained.
    """
    stored, key = base.encoded_texts, (max_length, tuple(examples))
    if key in stored:
        stored.move_to_end(key)
        return stored[key]
    texts = tuple(replace(text, spans=()) for text in encode_all(examples, base.tokenizer, max_length))
    longest = max((len(text.ids) for text in texts), default=0)
    if longest > base.positions:
        raise TextTooLong(
            f"an example has {longest} tokens, and {base.slug} reads {base.positions} at most; ask the "
            f"operator to set training.max_length to {base.positions} or less, or use a model "
            "with a longer context"
        )
    stored[key] = texts
    if len(stored) > _STORED_SETS:
        stored.popitem(last=False)
    return texts


def rendered(example: Example, tokenizer: PreTrainedTokenizerFast) -> tuple[str, str]:
    """Return the text that the model reads, and the text that it learns.

    Raises:
        TokenizerUnfit: the tokenizer has no chat template, or one that changes earlier turns.
    """
    if not example.turns:
        return example.prompt, example.completion
    before = _render_turns(example.turns, tokenizer)
    turns = [{"role": turn.role, "content": turn.content} for turn in example.turns]
    answer = {"role": "assistant", "content": example.completion}
    whole = str(tokenizer.apply_chat_template([*turns, answer], tokenize=False)).rstrip()
    if not whole.startswith(before) or len(whole) == len(before):
        raise TokenizerUnfit(
            "this model's chat template changes earlier turns when an answer follows, so the answer cannot "
            "be separated; write prompt and completion instead"
        )
    return before, whole[len(before) :]


def _render_turns(turns: Sequence[Turn], tokenizer: PreTrainedTokenizerFast) -> str:
    if tokenizer.chat_template is None:
        raise TokenizerUnfit(
            "the data are chats, and this model's tokenizer has no chat template; use a chat model, or write "
            "prompt and completion"
        )
    messages = [{"role": turn.role, "content": turn.content} for turn in turns]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
