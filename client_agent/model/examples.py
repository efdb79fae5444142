"""Say what an example is: its text, its name for all time, and how it is tokenised for a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from transformers import PreTrainedTokenizerFast

from client_agent.errors import TextTooLong, TokenizerUnfit
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import Encoded, encode


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Example:
    """What the model reads, a prompt or the `turns` of a chat so far, and the answer it must write."""

    prompt: str
    completion: str
    turns: tuple[Turn, ...] = ()
    options: tuple[str, ...] = ()
    """All completions that can be chosen, the right one included."""
    references: tuple[str, ...] = ()
    """Answers that a generated text is compared with; without any it is `completion`."""
    metrics: tuple[str, ...] = ()
    """Names of the metrics that fit the task (`client_agent/data/metrics.py`), beside the loss."""

    @property
    def key(self) -> str:
        """A digest of the text: the same wherever and whenever the example turns up."""
        turns = [[turn.role, turn.content] for turn in self.turns]
        return hashlib.sha256(json.dumps([self.prompt, turns, self.completion]).encode()).hexdigest()


def probe_set(examples: Sequence[Example], count: int) -> list[Example]:
    """Choose the `count` examples with the smallest digests: the same ones every round, in the same order."""
    return sorted({e.key: e for e in examples}.values(), key=lambda e: e.key)[:count]


def encode_example(example: Example, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Encoded:
    """Tokenise an example; the answer with its end-of-sequence token carries the loss.

    Raises:
        TokenizerUnfit: a chat example meets a tokenizer without a chat template.
    """
    if not example.turns:
        return encode(tokenizer, example.prompt, example.completion, max_length=max_length)
    prompt, answer = _render(example, tokenizer)
    return encode(tokenizer, prompt, answer, max_length=max_length, special=False)


def encode_prompt(prompt: str, tokenizer: PreTrainedTokenizerFast, *, chat: bool) -> list[int]:
    """Tokenise what comes before an answer as `encode_example` does; with `chat` the prompt is a user's turn.

    Raises:
        TokenizerUnfit: a chat meets a tokenizer without a chat template, or nothing is left to read.
    """
    text = _before((Turn("user", prompt),), tokenizer) if chat else prompt
    coded = tokenizer(text, add_special_tokens=not chat, return_offsets_mapping=True)
    ids = [int(i) for i in cast(list[int], coded["input_ids"])]
    spans = cast(list[tuple[int, int]], coded["offset_mapping"])
    while len(ids) > 1 and spans[len(ids) - 1][0] == spans[len(ids) - 1][1]:
        ids.pop()  # a special token that the tokenizer adds where an answer would follow
    if not ids:
        raise TokenizerUnfit("the prompt is empty, and this model's tokenizer adds no first token; write one")
    return ids


def encode_all(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int
) -> list[Encoded]:
    """Tokenise examples in order."""
    return [encode_example(example, tokenizer, max_length) for example in examples]


def encode_for(base: BaseModel, examples: Sequence[Example], max_length: int) -> list[Encoded]:
    """Tokenise examples in order for a model that will read all of each.

    Raises:
        TextTooLong: one has more tokens than the model has positions. Learnt positions end there, and what
            rotary ones do beyond is not what the model was trained for.
    """
    texts = encode_all(examples, base.tokenizer, max_length)
    longest = max((len(text.ids) for text in texts), default=0)
    if longest > base.positions:
        raise TextTooLong(
            f"an example has {longest} tokens, and {base.slug} reads {base.positions} at most: have "
            f"training.max_length set to {base.positions} or less, or take a model that reads more"
        )
    return texts


def _render(example: Example, tokenizer: PreTrainedTokenizerFast) -> tuple[str, str]:
    """Write a chat out with the tokenizer's template: the text before the answer, and the answer's."""
    before = _before(example.turns, tokenizer)
    turns = [{"role": turn.role, "content": turn.content} for turn in example.turns]
    answer = {"role": "assistant", "content": example.completion}
    whole = str(tokenizer.apply_chat_template([*turns, answer], tokenize=False)).rstrip()
    if not whole.startswith(before) or len(whole) == len(before):
        raise TokenizerUnfit(
            "this model's chat template changes earlier turns when an answer follows, so that the answer "
            "cannot be told apart; give prompt and completion instead"
        )
    return before, whole[len(before) :]


def _before(turns: Sequence[Turn], tokenizer: PreTrainedTokenizerFast) -> str:
    """Write out the turns that an answer follows."""
    if tokenizer.chat_template is None:
        raise TokenizerUnfit(
            "the data are chats and this model's tokenizer has no chat template; use a chat model, "
            "or give prompt and completion"
        )
    said = [{"role": turn.role, "content": turn.content} for turn in turns]
    return str(tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True))
