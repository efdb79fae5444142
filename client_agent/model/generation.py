"""Generate answers with transformers' `generate`, in the text format of training: one, or many in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, StoppingCriteria

from client_agent.errors import TextTooLong
from client_agent.model.forward import grouped_by_length
from client_agent.model.loading import BaseModel
from client_agent.model.stop_tokens import ends_of
from client_agent.model.tokens import pad_id

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer writes for the first bytes of a character whose other bytes are in later tokens."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the tokens of an answer are chosen, and where it ends.

    Attributes:
        temperature: 0 = the likeliest token each time; above 0 tokens are sampled, and a higher value makes
            unlikely ones more frequent.
        top_p: sample from the likeliest tokens that together have this probability.
        seed: of the sampling; None = another sample each time.
        stop: texts that end the answer; they are not part of it.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A generated text, its number of tokens, and why it ended.

    `end` is a special token of the model, `length` the limit or the end of the context, `stop` a stop text,
    `interrupted` the caller's wish.
    """

    text: str
    tokens: int
    ended: Literal["end", "length", "stop", "interrupted"]


def completion(
    base: BaseModel,
    prompt: Sequence[int],
    decoding: Decoding,
    *,
    on_text: Callable[[str], object] = lambda _: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Answer:
    """Continue a tokenised prompt; `on_text` receives the text in parts as it grows.

    It ends at any special token except unk, as answers do in training, or at the model's last position.

    Raises:
        TextTooLong: the prompt exceeds the model's context.
    """
    _require_room(base, len(prompt))
    count = min(decoding.max_new_tokens, base.positions - len(prompt) + 1)
    stream = AnswerStream(base.tokenizer, prompt, decoding.stop, on_text, interrupted)
    ids = torch.tensor([list(prompt)])  # (1, t)
    # A seed for this answer only.
    with torch.random.fork_rng(enabled=decoding.seed is not None):
        if decoding.seed is not None:
            torch.manual_seed(decoding.seed)
        _generate(base, ids, torch.ones_like(ids), count, decoding, [stream])
    stream.close()
    return Answer(stream.text, stream.tokens, _ending(stream, base.tokenizer))


class AnswerStream(StoppingCriteria):
    """Decode an answer while it is generated, and end it at a stop text.

    This is a stopping criterion and not a streamer, which receives a token only after the criteria: stop
    texts need the decoded text too. transformers' own stop strings match texts that begin in the prompt. A
    character of several tokens is written whole, and what may become a stop text is held back.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        prompt: Sequence[int],
        stop: Sequence[str] = (),
        on_text: Callable[[str], object] = lambda _: None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.text = ""
        self.tokens = 0
        self.last_token: int | None = None
        self.stopped = self.interrupted = False
        self._written = 0
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._on_text, self._is_interrupted = on_text, interrupted
        self._prompt_tokens = len(prompt)
        self._prompt_text = len(_text(tokenizer, prompt))

    def __call__(self, input_ids: Tensor, scores: object, **_: object) -> Tensor:
        """Read prompt and answer so far (1, t); return whether the answer has ended: (1,)."""
        self.read(cast(list[int], input_ids[0].tolist()))
        return torch.full((1,), self.stopped or self.interrupted, device=input_ids.device)

    def read(self, ids: Sequence[int]) -> None:
        """Decode the whole text, and write what is new and certain."""
        self.tokens, self.last_token = len(ids) - self._prompt_tokens, ids[-1]
        # Decoded together with the prompt, since some tokenizers drop a leading space.
        self.text = _text(self._tokenizer, ids)[self._prompt_text :]
        ends = [self.text.find(stop) for stop in self._stop if stop in self.text]
        if ends:
            self.text, self.stopped = self.text[: min(ends)], True
        self.interrupted = self._is_interrupted()
        if not self.text.endswith(_INCOMPLETE):
            self._write(len(self.text) if self.stopped else len(self.text) - self._held_back())

    def close(self) -> None:
        """Write the remaining text; no token follows."""
        self._write(len(self.text))

    def _held_back(self) -> int:
        """Return the length of the longest end of the text with which a stop text begins."""
        lengths = (n for stop in self._stop for n in range(1, len(stop)) if self.text.endswith(stop[:n]))
        return max(lengths, default=0)

    def _write(self, end: int) -> None:
        if end > self._written:
            self._on_text(self.text[self._written : end])
            self._written = end


def _ending(
    stream: AnswerStream, tokenizer: PreTrainedTokenizerFast
) -> Literal["end", "length", "stop", "interrupted"]:
    if stream.stopped:
        return "stop"
    if stream.last_token in ends_of(tokenizer):
        return "end"
    return "interrupted" if stream.interrupted else "length"


def completions(base: BaseModel, prompts: Sequence[Sequence[int]], *, max_new_tokens: int) -> list[str]:
    """Continue tokenised prompts greedily, in batches; each text is that of `completion`.

    Raises:
        TextTooLong: a prompt and `max_new_tokens` exceed the model's context.
    """
    _require_room(base, max(map(len, prompts), default=0), max_new_tokens)
    texts = [""] * len(prompts)
    for group in grouped_by_length([len(prompt) + max_new_tokens for prompt in prompts]):
        batch = [prompts[index] for index in group]
        for index, tokens in zip(group, _greedy_batch(base, batch, max_new_tokens), strict=True):
            start = len(_text(base.tokenizer, prompts[index]))
            # Decoded with the prompt: some tokenizers drop a leading space.
            texts[index] = _text(base.tokenizer, [*prompts[index], *tokens])[start:]
    return texts


def _greedy_batch(base: BaseModel, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Continue each prompt by at most `count` tokens; an answer excludes its end token."""
    width, pad, ends = max(map(len, prompts)), pad_id(base.tokenizer), ends_of(base.tokenizer)
    # Padding on the left, so that all answers begin at the same position.
    ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])  # (n, t)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    sequences = _generate(base, ids, mask, count, Decoding(count), [])
    answers = cast(list[list[int]], sequences[:, width:].tolist())
    return [
        answer[: next((i for i, token in enumerate(answer) if token in ends), len(answer))]
        for answer in answers
    ]


def _generate(
    base: BaseModel,
    ids: Tensor,
    mask: Tensor,
    count: int,
    decoding: Decoding,
    criteria: Sequence[StoppingCriteria],
) -> Tensor:
    """Continue the rows of `ids` (n, t), of which `mask` (n, t) has 1 for tokens and 0 for padding."""
    options: dict[str, object] = {"do_sample": False}
    if decoding.temperature > 0:
        # transformers has a top_k of 50 by default.
        sampled = {"temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": 0}
        options = {"do_sample": True, **sampled}
    config = _settings(
        **options,
        max_new_tokens=count,
        # Any token that ends answers in training, of which the model may have several.
        eos_token_id=sorted(ends_of(base.tokenizer)) or None,
        pad_token_id=pad_id(base.tokenizer),
    )
    generate = cast(Callable[..., Tensor], cast(Any, base.model).generate)
    with torch.inference_mode(), _no_settings_of_its_own(base):
        return generate(
            input_ids=ids.to(base.device),
            attention_mask=mask.to(base.device),
            generation_config=config,
            stopping_criteria=list(criteria),
        )


@contextmanager
def _no_settings_of_its_own(base: BaseModel) -> Iterator[None]:
    """Ignore a model's generation_config.json, whose penalties and bans would apply here too."""
    model = cast(Any, base.model)
    stored = model.generation_config
    model.generation_config = _settings()
    try:
        yield
    finally:
        model.generation_config = stored


def _settings(**options: object) -> GenerationConfig:
    return cast(Callable[..., GenerationConfig], GenerationConfig)(**options)


def _require_room(base: BaseModel, prompt: int, new_tokens: int = 1) -> None:
    if prompt + new_tokens - 1 > base.positions:
        raise TextTooLong(
            f"the prompt has {prompt} tokens, and {base.slug} reads {base.positions - new_tokens + 1} at "
            "most; shorten the prompt"
        )


def _text(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    decode = cast(Any, tokenizer).decode
    return str(decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
