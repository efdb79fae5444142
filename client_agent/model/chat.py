"""Render chats with a tokenizer's chat template: the text, what is learnt, and what only spells tokens."""

from __future__ import annotations

import json
import os.path
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerFast

from client_agent.errors import DataInvalid, TokenizerUnfit
from client_agent.model.chat_template import (
    ASSISTANT,
    PLAIN,
    Arguments,
    Turn,
    has_tags,
    render,
    set_template,
    tagged_spans,
)
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
        answer: where the last answer begins; the text before it is the question.
        closed: whether the token that ends the last answer is learnt, added if there is none.
    """

    text: str
    spans: tuple[Span, ...]
    as_text: tuple[Span, ...] = ()
    answer: int = 0
    closed: bool = True


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
        if has_tags(self.tokenizer):
            spans_between_tags = self._tagged(len(text))
            text, as_text = reveal(text, self.tokenizer)
            return Learnt(text, spans_between_tags, as_text, answer=len(before), closed=False)
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
        return Learnt(text, tuple(spans), as_text, answer=len(before))

    def _tagged(self, length: int) -> tuple[Span, ...]:
        """Return the spans between {% generation %} and {% endgeneration %} in the first `length` characters.

        Raises:
            DataInvalid: nothing stands between the tags, or the tags do not tell the answers apart of which
                some have a weight of 0.
        """
        spans = tagged_spans(self.turns, self.tokenizer, tools=self.tools, arguments=self.arguments)
        answers = [turn for turn in self.turns if turn.role == ASSISTANT]
        if not all(turn.learnt for turn in answers):
            if len(spans) != len(answers):
                raise DataInvalid(
                    f"{located(self.place)}the chat template has {len(spans)} parts between "
                    f"{{% generation %}} tags for {len(answers)} answers, some of which have a weight of 0; "
                    "write one pair of tags around each answer, or remove the tags"
                )
            spans = [span for span, turn in zip(spans, answers, strict=True) if turn.learnt]
        spans = [(start, min(end, length)) for start, end in spans if start < min(end, length)]
        if not spans:
            raise DataInvalid(
                f"{located(self.place)}the chat template writes nothing between {{% generation %}} and "
                "{% endgeneration %}, so nothing is learnt; put the tags around the answers, or remove them"
            )
        return tuple(spans)

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
        """Raise if a part of a turn is not in the text.

        Letters and digits count: templates trim white space and rewrite quotes. An earlier answer may be
        written otherwise once a turn follows, as templates do that drop its reasoning; it is then not learnt,
        and has to be complete in the chat that ends with it.
        """
        for index, turn in enumerate(self.turns):
            answers = turn.role == ASSISTANT
            ends_here = index == len(self.turns) - 1
            fields = json.loads(turn.fields) if turn.fields else {}
            reasoning = str(fields.get("reasoning_content", ""))
            for part, content in (("content", turn.content), ("reasoning_content", reasoning)):
                if not content or self._is_rendered(index, part, content, text, self.turns):
                    continue
                if answers and not ends_here:
                    through = self.turns[: index + 1]
                    if self._is_rendered(index, part, content, self._render(through), through):
                        continue
                raise self._left_out(index, part, content, text)
            if len(calls := fields.get("tool_calls", ())) > 1:
                fewer = json.dumps({**fields, "tool_calls": calls[:-1]}, ensure_ascii=False)
                if self._render(_replaced(self.turns, index, fields=fewer)) == self._render(self.turns):
                    raise DataInvalid(
                        f"{located(self.place)}the chat template leaves out the second call of a turn of "
                        f"{turn.role}; {_WAYS_OUT}"
                    )

    def _is_rendered(self, index: int, part: str, content: str, text: str, turns: Sequence[Turn]) -> bool:
        """Whether a text, the rendered `turns`, has a part of the turn at `index`: its letters and digits, in order."""
        letters = _letters(content)
        if len(letters) >= _CERTAIN:
            if content.strip() in text or letters in _letters(text):
                return True
        elif letters and self._is_structure_rendered(index, part, turns):
            # So short a text may stand anywhere; the template writes this turn in a chat of this form.
            return content.strip() in text or letters in _letters(text)
        elif not letters and content.strip() in text:
            return True
        # Rewritten, as in JSON: what differs from the chat with another text here is how it is written.
        probed = self._render(_probed(turns, index, part))
        if _PROBE not in probed:
            return False
        written = _differing(text, probed)
        return _is_subsequence(letters, _letters(written)) if letters else bool(written.strip())

    def _is_structure_rendered(self, index: int, part: str, turns: Sequence[Turn]) -> bool:
        """Whether the template writes a part of this turn in a chat of these roles; found once for each form."""
        form = (index, part, tuple((turn.role, bool(turn.fields)) for turn in turns))
        forms = _forms.setdefault(self.tokenizer, {})
        key = (str(self.tokenizer.chat_template), bool(self.tools), form)
        if key not in forms:
            forms[key] = _PROBE in self._render(_probed(turns, index, part))
        return forms[key]

    def _left_out(self, index: int, part: str, content: str, text: str) -> DataInvalid:
        probed = self._render(_probed(self.turns, index, part))
        written = _differing(text, probed) if _PROBE in probed else ""
        role, missing = self.turns[index].role, _missing(content, written)
        reasoning = (
            "write what stands between <think> and </think> as reasoning_content of the turn, "
            if part == "content" and _THINK in missing and facts_of(self.tokenizer).reasoning
            else ""
        )
        return DataInvalid(
            f"{located(self.place)}the chat template leaves out a part of the {part} of a turn of {role}: "
            f"{json.dumps(_excerpt(missing), ensure_ascii=False)}; {reasoning}{_WAYS_OUT}"
        )


_WAYS_OUT = (
    "set chat_template to plain or to a .jinja file of your own that writes it, or remove it from the data"
)
_THINK = "<think>"
_CERTAIN = 12
"""Letters and digits of a text that does not stand in a chat by chance."""
_EXCERPT = 60
_forms: WeakKeyDictionary[PreTrainedTokenizerFast, dict[object, bool]] = WeakKeyDictionary()


def _probed(turns: Sequence[Turn], index: int, part: str) -> tuple[Turn, ...]:
    """Return turns with one part of a turn replaced by a text that stands nowhere else."""
    if part == "content":
        return _replaced(turns, index, content=_PROBE)
    fields = json.loads(turns[index].fields)
    return _replaced(turns, index, fields=json.dumps({**fields, part: _PROBE}, ensure_ascii=False))


def _replaced(turns: Sequence[Turn], index: int, **changes: str) -> tuple[Turn, ...]:
    return (*turns[:index], replace(turns[index], **changes), *turns[index + 1 :])


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))


def _differing(text: str, reference: str) -> str:
    """Return the part of a text between what it and another one have in common at their beginning and end."""
    start = len(os.path.commonprefix((text, reference)))
    end = len(os.path.commonprefix((text[start:][::-1], reference[start:][::-1])))
    return text[start : len(text) - end]


def _is_subsequence(letters: str, text: str) -> bool:
    remaining = iter(text)
    return all(letter in remaining for letter in letters)


def _missing(content: str, written: str) -> str:
    """Return the longest part of a content that is not in what the template writes."""
    matcher = SequenceMatcher(None, written, content, autojunk=False)
    spans = [(j1, j2) for tag, _, _, j1, j2 in matcher.get_opcodes() if tag in ("insert", "replace")]
    start, end = max(spans, key=lambda span: span[1] - span[0], default=(0, len(content)))
    return content[start:end]


def _excerpt(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _EXCERPT else text[:_EXCERPT] + "..."


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
