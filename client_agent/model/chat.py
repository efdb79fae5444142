"""Render chats with a tokenizer's chat template: the text, what is learnt, and what only spells tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerFast

from client_agent.errors import DataInvalid, TokenizerUnfit
from client_agent.model.chat_template import ASSISTANT, PLAIN, Arguments, Turn, render, set_template
from client_agent.model.special_text import Span, hide, located, reveal
from client_agent.model.template_facts import TemplateFacts, facts_of

_PROBE = "~tessera~"

__all__ = ["ASSISTANT", "PLAIN", "Learnt", "Turn", "prompt_of", "rendered_chat", "set_template"]


@dataclass(frozen=True, slots=True)
class Learnt:
    """A text as the model reads it.

    Attributes:
        spans: the spans [start, end) that are learnt: in order, apart, one at least.
        as_text: the spans that spell special tokens and are read as the text that they are.
    """

    text: str
    spans: tuple[Span, ...]
    as_text: tuple[Span, ...] = ()


def prompt_of(
    turns: Sequence[Turn], tokenizer: PreTrainedTokenizerFast, place: str = "", tools: str = ""
) -> Learnt:
    """Render the turns of a chat up to where the assistant's answer begins; nothing of it is learnt.

    Raises:
        TokenizerUnfit: the tokenizer has no chat template.
        DataInvalid: the template refuses the chat, or does not render something of it.
    """
    return _Chat.of(turns, tokenizer, place, tools).prompt()


def rendered_chat(
    turns: Sequence[Turn], tokenizer: PreTrainedTokenizerFast, place: str = "", tools: str = ""
) -> Learnt:
    """Render a chat that ends with an assistant's turn; every turn of the assistant is learnt.

    A template may write earlier turns otherwise when others follow, as those that drop the reasoning of
    earlier answers do. The spans of earlier answers are then unknown, and the last answer alone is learnt.
    Where the beginning of the next turn ends an answer, it is learnt with it.

    Raises:
        TokenizerUnfit: the tokenizer has no chat template, or one that changes even the turns before the
            last answer.
        DataInvalid: the template refuses the chat, or does not render something of it.
    """
    return _Chat.of(turns, tokenizer, place, tools).whole()


@dataclass(frozen=True, slots=True)
class _Chat:
    """A chat whose special tokens are hidden, so that those of the template stand out."""

    turns: tuple[Turn, ...]
    tokenizer: PreTrainedTokenizerFast
    place: str
    tools: str
    arguments: Arguments

    @classmethod
    def of(cls, turns: Sequence[Turn], tokenizer: PreTrainedTokenizerFast, place: str, tools: str) -> _Chat:
        hidden = tuple(
            replace(
                turn,
                content=hide(turn.content, tokenizer, place),
                fields=hide(turn.fields, tokenizer, place),
            )
            for turn in turns
        )
        facts = facts_of(tokenizer)
        keys = {key for turn in turns if turn.fields for key in json.loads(turn.fields)}
        _require_rendered(keys | ({"tools"} if tools else set()), facts, place, tokenizer)
        return cls(hidden, tokenizer, place, hide(tools, tokenizer, place), facts.calls or "object")

    def prompt(self) -> Learnt:
        text = self._render(self.turns, prompt=True)
        self._require_all_rendered(text)
        text, as_text = reveal(text, self.tokenizer)
        return Learnt(text, (), as_text)

    def whole(self) -> Learnt:
        text = self._render(self.turns).rstrip()
        self._require_all_rendered(text)
        *earlier, last = [i for i, turn in enumerate(self.turns) if turn.role == ASSISTANT]
        before = self._render(self.turns[:last], prompt=True)
        if not text.startswith(before) or len(text) == len(before):
            raise TokenizerUnfit(
                "this model's chat template changes earlier turns when an answer follows, so the answer "
                "cannot be separated; set chat_template to plain or to a .jinja file of your own, or write "
                "prompt and completion instead"
            )
        ending = facts_of(self.tokenizer).ending
        marker = ending.text if ending.kind == "marker" else ""
        spans: list[Span] = []
        for index in earlier:
            span = self._span(self.turns[: index + 1], text)
            if span is None:
                spans = []
                break
            if self.turns[index].learnt:
                start, end = span
                spans.append((start, end + len(marker)) if text.startswith(marker, end) else span)
        spans.append((len(before), len(text) + len(marker)))
        text, as_text = reveal(text + marker, self.tokenizer)
        return Learnt(text, tuple(spans), as_text)

    def _span(self, turns: Sequence[Turn], whole: str) -> Span | None:
        """Return the span of an earlier answer and its end-of-turn token; None if written otherwise."""
        through = self._render(turns)
        if len(turns) == 1:  # nothing to render before it
            before = through[: max(0, through.find(turns[0].content))]
        else:
            before = self._render(turns[:-1], prompt=True)
        if not whole.startswith(before) or not whole.startswith(through):
            return None
        end = len(through.rstrip())
        return (len(before), end) if end > len(before) and through.startswith(before) else None

    def _render(self, turns: Sequence[Turn], *, prompt: bool = False) -> str:
        return render(
            turns, self.tokenizer, self.place, tools=self.tools, prompt=prompt, arguments=self.arguments
        )

    def _require_all_rendered(self, text: str) -> None:
        """Raise if the text would be the same without the content of a turn, or without one of its calls."""
        for index, turn in enumerate(self.turns):
            if turn.content and not _is_in(turn.content, text):
                self._require_change(index, replace(turn, content=_PROBE), "content")
            fields = json.loads(turn.fields) if turn.fields else {}
            if len(calls := fields.get("tool_calls", ())) > 1:
                fewer = json.dumps({**fields, "tool_calls": calls[:-1]}, ensure_ascii=False)
                self._require_change(index, replace(turn, fields=fewer), "second call")

    def _require_change(self, index: int, turn: Turn, part: str) -> None:
        changed = (*self.turns[:index], turn, *self.turns[index + 1 :])
        if self._render(changed) == self._render(self.turns):
            raise DataInvalid(
                f"{located(self.place)}the model's chat template leaves out the {part} of "
                f"a turn of {turn.role}; set chat_template to plain or to a .jinja file that renders it, or "
                "leave such rows out"
            )


def _is_in(content: str, text: str) -> bool:
    """Whether a text has a content, as it is or as JSON."""
    content = content.strip()
    return content in text or json.dumps(content, ensure_ascii=False)[1:-1] in text


_DESCRIBED = {
    "tools": "the tools that the assistant may call",
    "tool_calls": "the assistant's calls of tools",
    "reasoning_content": "the reasoning before an answer",
}


def _require_rendered(
    keys: AbstractSet[str], facts: TemplateFacts, place: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    rendered = {
        "tools": facts.tools,
        "tool_calls": facts.calls is not None,
        "reasoning_content": facts.reasoning,
    }
    missing = [key for key, is_rendered in rendered.items() if key in keys and not is_rendered]
    if missing:
        name = str(tokenizer.name_or_path or "this model")
        described = " and ".join(f"{key} ({_DESCRIBED[key]})" for key in missing)
        raise DataInvalid(
            f"{located(place)}the chat template of {name} does not render {described}; set "
            f"chat_template to a .jinja file that does, or set ignore_columns = {json.dumps(missing)} to "
            "train without"
        )
