"""Render chats with a tokenizer's chat template, and set a template where a tokenizer has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, TemplateError
from transformers import PreTrainedTokenizerFast

from client_agent.errors import DataInvalid, SettingsUnusable, TokenizerUnfit

PLAIN = "plain"
_ASSISTANT = "assistant"
# An answer ends with eos, so that the end of every answer is learnt, not of the last alone.
_PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Learnt:
    """A text and the character spans [start, end) that are learnt: in order, apart, one at least."""

    text: str
    spans: tuple[tuple[int, int], ...]


def set_template(tokenizer: PreTrainedTokenizerFast, setting: str | None) -> None:
    """Set the chat template of the setting `chat_template`: `plain` or a file; None keeps the model's own.

    Raises:
        SettingsUnusable: the file cannot be read, or is not a Jinja template.
    """
    if setting is None:
        return
    template = _plain_for(tokenizer) if setting == PLAIN else _read(Path(setting))
    tokenizer.chat_template = template


def _plain_for(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return the plain template; it begins with bos if the tokenizer begins a text with it."""
    ids = cast(list[int], tokenizer("a")["input_ids"])
    return ("{{ bos_token }}" if ids[0] == tokenizer.bos_token_id else "") + _PLAIN_TEMPLATE


def _read(file: Path) -> str:
    try:
        template = file.expanduser().read_text("utf-8")
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)
    except (OSError, ValueError) as error:
        raise SettingsUnusable(
            f"chat_template: {file} cannot be read ({error}); set it to {PLAIN} or the path of a .jinja file"
        ) from error
    except TemplateError as error:
        raise SettingsUnusable(f"chat_template: {file} is not a Jinja template: {error}") from error
    return template


def prompt_of(turns: Sequence[Turn], tokenizer: PreTrainedTokenizerFast, place: str = "") -> str:
    """Render the turns of a chat up to where the assistant's answer begins.

    Raises:
        TokenizerUnfit: the tokenizer has no chat template.
        DataInvalid: the template refuses the chat.
    """
    return _render(turns, tokenizer, place, prompt=True)


def rendered_chat(turns: Sequence[Turn], tokenizer: PreTrainedTokenizerFast, place: str = "") -> Learnt:
    """Render a chat that ends with an assistant's turn; every turn of the assistant is learnt.

    A template may write earlier turns otherwise when others follow, as those that drop the reasoning of
    earlier answers do. The spans of earlier answers are then unknown, and the last answer alone is learnt.

    Raises:
        TokenizerUnfit: the tokenizer has no chat template, or one that changes even the turns before the
            last answer.
        DataInvalid: the template refuses the chat.
    """
    whole = _render(turns, tokenizer, place).rstrip()
    *earlier, last = [i for i, turn in enumerate(turns) if turn.role == _ASSISTANT]
    before = _render(turns[:last], tokenizer, place, prompt=True)
    if not whole.startswith(before) or len(whole) == len(before):
        raise TokenizerUnfit(
            "this model's chat template changes earlier turns when an answer follows, so the answer cannot "
            "be separated; set chat_template to plain or to a .jinja file of your own, or write prompt and "
            "completion instead"
        )
    spans: list[tuple[int, int]] = []
    for index in earlier:
        span = _span(turns[: index + 1], whole, tokenizer, place)
        if span is None:
            spans = []
            break
        spans.append(span)
    return Learnt(whole, (*spans, (len(before), len(whole))))


def _span(
    turns: Sequence[Turn], whole: str, tokenizer: PreTrainedTokenizerFast, place: str
) -> tuple[int, int] | None:
    """Return the span of an earlier answer, with its end-of-turn token; None if it is written otherwise."""
    through = _render(turns, tokenizer, place)
    if len(turns) == 1:  # nothing to render before it
        before = through[: max(0, through.find(turns[0].content))]
    else:
        before = _render(turns[:-1], tokenizer, place, prompt=True)
    if not whole.startswith(before) or not whole.startswith(through):
        return None
    end = len(through.rstrip())
    return (len(before), end) if end > len(before) and through.startswith(before) else None


def _render(
    turns: Sequence[Turn], tokenizer: PreTrainedTokenizerFast, place: str, *, prompt: bool = False
) -> str:
    if tokenizer.chat_template is None:
        raise TokenizerUnfit(
            "the data are chats, and this model's tokenizer has no chat template; set chat_template to plain "
            "or to a .jinja file, use a chat model, or write prompt and completion"
        )
    messages = [{"role": turn.role, "content": turn.content} for turn in turns]
    try:
        apply = cast(Any, tokenizer).apply_chat_template
        text = apply(messages, tokenize=False, add_generation_prompt=prompt)
    except TemplateError as error:
        raise DataInvalid(
            f"{f'{place}: ' if place else ''}the model's chat template refuses this chat ({error}); change "
            "the order of its turns, or set chat_template to plain or to a .jinja file"
        ) from error
    return str(text)
