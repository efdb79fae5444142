"""Render chats with a tokenizer's chat template: the text, what is learnt, and what only spells tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerFast

from client_agent.errors import DataInvalid, TokenizerUnfit
from client_agent.model.chat_template import (
    ASSISTANT,
    PLAIN,
    Arguments,
    Turn,
    has_generation_tags,
    render,
    render_tagged,
    set_template,
)
from client_agent.model.complete_turns import fixed_parts, is_interleaved, is_rendered, leaves_of
from client_agent.model.special_text import Span, hide, located, reveal
from client_agent.model.template_facts import TemplateFacts, facts_of

_SWITCH = re.compile(r"(?<!\S)/(?:no_)?think(?!\S)")
_PROBE = "~tessera~"
_SHOWN = 60
_THINK_END = "</think>"

__all__ = ["ASSISTANT", "PLAIN", "TrainingText", "Turn", "prompt_of", "rendered_chat", "set_template"]


@dataclass(frozen=True, slots=True)
class TrainingText:
    """A text as the model reads it.

    Attributes:
        spans: the spans [start, end) that are learnt: in order, apart, one at least.
        as_text: the spans that spell special tokens and are read as the text that they are.
        answer: where the last answer begins: the model reads the text before it as the prompt.
        closed: whether the token that ends the last answer is learnt, and added if there is none.
    """

    text: str
    spans: tuple[Span, ...]
    as_text: tuple[Span, ...] = ()
    answer: int = 0
    closed: bool = True


def prompt_of(
    turns: Sequence[Turn], tokenizer: PreTrainedTokenizerFast, place: str = "", tools: str = ""
) -> TrainingText:
    """Render the turns of a chat up to where the assistant's answer begins; nothing of it is learnt.

    Raises:
        TokenizerUnfit: the tokenizer has no chat template.
        DataInvalid: the template refuses the chat, or does not render something of it.
    """
    return _Chat.of(turns, tokenizer, place, tools).prompt()


def rendered_chat(
    turns: Sequence[Turn], tokenizer: PreTrainedTokenizerFast, place: str = "", tools: str = ""
) -> TrainingText:
    """Render a chat that ends with an assistant's turn; every turn of the assistant is learnt.

    A template may write earlier turns otherwise when others follow, as those that drop the reasoning of
    earlier answers do. The spans of earlier answers are then unknown, and the last answer alone is learnt.
    Where the beginning of the next turn ends an answer, it is learnt with it. Of a template with
    {% generation %} tags, what stands between them is learnt, and nothing else.

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
                # Special tokens that the data spell are hidden, so that those of the template stand out.
                content=hide(turn.content, tokenizer, place),
                fields=hide(turn.fields, tokenizer, place),
            )
            for turn in turns
        )
        facts = facts_of(tokenizer)
        keys = {key for turn in turns if turn.fields for key in json.loads(turn.fields)}
        _require_rendered(keys | ({"tools"} if tools else set()), facts, place, tokenizer)
        return cls(hidden, tokenizer, place, hide(tools, tokenizer, place), facts.calls or "object")

    def prompt(self) -> TrainingText:
        text = self._render(self.turns, prompt=True)
        self._require_complete(text, prompt=True)
        text, as_text = reveal(text, self.tokenizer)
        return TrainingText(text, (), as_text, len(text))

    def whole(self) -> TrainingText:
        # Templates end with a line break, which no answer should learn.
        text = self._render(self.turns).rstrip()
        rewritten = self._require_complete(text, prompt=False)
        before = self._render(self.turns[:-1], prompt=True)
        # Some templates rewrite earlier turns once an answer follows.
        is_separate = text.startswith(before) and len(text) > len(before)
        is_tagged = has_generation_tags(self.tokenizer)
        marker = "" if is_tagged else self._marker()
        if is_tagged:
            spans = self._tagged(text, rewritten)
            start = len(before) if is_separate else spans[-1][0]
        elif is_separate:
            spans = [*self._earlier_answers(text), (len(before), len(text) + len(marker))]
            start = len(before)
        else:
            raise TokenizerUnfit(
                "this model's chat template changes earlier turns when an answer follows, so the answer "
                "cannot be separated; set chat_template to plain or to a .jinja file of your own, or write "
                "prompt and completion instead"
            )
        text, as_text = reveal(text + marker, self.tokenizer)
        return TrainingText(text, tuple(spans), as_text, start, closed=not is_tagged)

    def _marker(self) -> str:
        """Return the beginning of the next turn if it ends an answer; empty if it does not."""
        ending = facts_of(self.tokenizer).ending
        return ending.text if ending.kind == "marker" else ""

    def _earlier_answers(self, text: str) -> list[Span]:
        """Return the spans of the earlier answers that are learnt; none if one is written otherwise."""
        marker, spans = self._marker(), []
        for index, turn in enumerate(self.turns[:-1]):
            if turn.role != ASSISTANT:
                continue
            span = self._span(self.turns[: index + 1], text)
            if span is None:
                return []
            if turn.learnt:
                start, end = span
                spans.append((start, end + len(marker)) if text.startswith(marker, end) else span)
        return spans

    def _tagged(self, text: str, rewritten: AbstractSet[int]) -> list[Span]:
        """Return the spans between the template's generation tags, of the answers that are learnt.

        An earlier answer that the template shortens is not learnt.

        Raises:
            DataInvalid: there is none, or the tags do not show which answer a span belongs to.
        """
        rendered, spans = render_tagged(
            self.turns, self.tokenizer, self.place, tools=self.tools, arguments=self.arguments
        )
        spans = [(start, min(end, len(text))) for start, end in spans if rendered[start:end].strip()]
        answers = [index for index, turn in enumerate(self.turns) if turn.role == ASSISTANT]
        learnt = [self.turns[index].learnt and index not in rewritten for index in answers]
        if not all(learnt) and len(spans) == len(answers):
            return [span for span, is_learnt in zip(spans, learnt, strict=True) if is_learnt]
        if rendered.rstrip() != text or not spans or not all(learnt):
            raise DataInvalid(
                f"{located(self.place)}the model's chat template has {len(spans)} texts between "
                f"{{% generation %}} and {{% endgeneration %}} for {len(answers)} answers; write the tags "
                "around the text of every assistant's turn, or remove them from the template"
            )
        return spans

    def _span(self, turns: Sequence[Turn], text: str) -> Span | None:
        """Return the span of an earlier answer and its end-of-turn token; None if written otherwise."""
        rendered, before = self._render(turns), self._before(turns)
        if not text.startswith(before) or not text.startswith(rendered):
            return None
        end = len(rendered.rstrip())
        return (len(before), end) if end > len(before) and rendered.startswith(before) else None

    def _before(self, turns: Sequence[Turn]) -> str:
        """Return the text before the answer that ends `turns`."""
        if len(turns) > 1:
            return self._render(turns[:-1], prompt=True)
        rendered = self._render(turns)  # a chat that begins with an answer: nothing to render before it
        return rendered[: max(0, rendered.find(turns[0].content))]

    def _render(self, turns: Sequence[Turn], *, prompt: bool = False) -> str:
        return render(
            turns, self.tokenizer, self.place, tools=self.tools, prompt=prompt, arguments=self.arguments
        )

    def _require_complete(self, text: str, *, prompt: bool) -> frozenset[int]:
        """Raise if the text lacks a part of a turn; return the earlier answers that it shortens.

        Templates may shorten earlier answers once a turn follows. These are not learnt then.
        """
        parts = fixed_parts(self.turns, self.tokenizer, self.tools, self._render, prompt=prompt)
        rewritten: set[int] = set()
        # The quick test for most rows. Only those that fail are rendered again, turn by turn.
        if not is_interleaved(text, parts, [turn.content for turn in self.turns]):
            for index, turn in enumerate(self.turns):
                if turn.content.strip() and self._is_rewritten(index, text, prompt=prompt):
                    rewritten.add(index)
        for index, turn in enumerate(self.turns):
            if turn.fields:
                self._require_fields(index, json.loads(turn.fields), text, prompt=prompt)
        return frozenset(rewritten)

    def _is_rewritten(self, index: int, text: str, *, prompt: bool) -> bool:
        """Whether the text has a part of an earlier answer only, which a shorter chat has whole.

        Raises:
            DataInvalid: a part of another turn is left out.
        """
        turn = self.turns[index]
        rendered = self._rendered_content(index, self.turns, text, prompt=prompt)
        if rendered is None:
            return False
        is_earlier = turn.role == ASSISTANT and (prompt or index < len(self.turns) - 1)
        if is_earlier:
            through = self.turns[: index + 1]
            is_whole = self._rendered_content(index, through, self._render(through), prompt=False) is None
            if is_whole or (prompt and rendered.strip()):
                return True
        if not rendered.strip():
            raise self._left_out(turn, "the content")
        raise self._left_out(turn, "a part of the content", rendered)

    def _rendered_content(self, index: int, turns: Sequence[Turn], text: str, *, prompt: bool) -> str | None:
        """Return the rendered text of a turn's content if it lacks a part of it; None = it is complete."""
        probe = replace(turns[index], content=_PROBE)
        try:
            changed = self._render((*turns[:index], probe, *turns[index + 1 :]), prompt=prompt)
        except DataInvalid:  # the template reads the content, such as JSON of a tool
            changed = ""
        content, text, changed = turns[index].content, text.rstrip(), changed.rstrip()
        rendered = is_rendered(content, text, changed)
        if rendered is not None and turns[index].role != ASSISTANT:
            # Templates of models that reason take these switches out of instructions, and act on them.
            without_switches = _SWITCH.sub("", content)
            if without_switches != content and is_rendered(without_switches, text, changed) is None:
                return None
        return rendered

    def _require_fields(self, index: int, fields: dict[str, object], text: str, *, prompt: bool) -> None:
        """Raise if an answer's calls of tools or its reasoning are left out.

        Earlier answers are compared in the chat that they end; those of a prompt are not learnt.
        """
        turn = self.turns[index]
        calls = fields.get("tool_calls")
        if isinstance(calls, list) and len(calls) > 1:
            fewer = json.dumps({**fields, "tool_calls": calls[:-1]}, ensure_ascii=False)
            changed = (*self.turns[:index], replace(turn, fields=fewer), *self.turns[index + 1 :])
            if self._render(changed, prompt=prompt).rstrip() == text.rstrip():
                raise self._left_out(turn, "second call")
        if turn.role != ASSISTANT or prompt or not turn.learnt:
            return
        through = self.turns[: index + 1]
        rendered = text if len(through) == len(self.turns) else self._render(through)
        answer = rendered.removeprefix(self._before(through))
        for name, leaf in leaves_of(fields):
            if is_rendered(leaf, answer, "") is not None:
                raise self._left_out(turn, f"a part of {name}", answer, of=leaf)

    def _left_out(self, turn: Turn, part: str, rendered: str = "", *, of: str = "") -> DataInvalid:
        """Return the error that a part of a turn is left out, with a remedy."""
        content, _ = reveal(of or turn.content, self.tokenizer)
        shown = (
            f" ({content[:_SHOWN]!r} is rendered as {reveal(rendered, self.tokenizer)[0].strip()[:_SHOWN]!r})"
        )
        remedies = ["set chat_template to a .jinja file that renders it", "leave such rows out"]
        if not turn.fields and not self.tools:  # which the plain template does not render
            remedies[0] = "set chat_template to plain or to a .jinja file that renders it"
        if turn.role == ASSISTANT and _THINK_END in turn.content and facts_of(self.tokenizer).reasoning:
            remedies.insert(0, "write the text between <think> and </think> as reasoning_content of its turn")
        article = "" if part.startswith(("the", "a ")) else "the "
        return DataInvalid(
            f"{located(self.place)}the model's chat template leaves out {article}{part} of a turn of "
            f"{turn.role}{shown if rendered else ''}; {', or '.join(remedies)}"
        )


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
