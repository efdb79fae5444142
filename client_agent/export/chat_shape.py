"""Find the shape of a chat template: the fixed text before and after every turn, by its role.

Ollama's templates are written in Go, not in Jinja. A template that writes every turn as fixed text, content,
fixed text can be written in both; the others are recognised by comparing rendered chats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from client_agent.model.chat import Turn

_SYSTEM, _FIRST, _ANSWER, _SECOND = (
    Turn(role, f"tessera {i}") for i, role in enumerate(("system", "user", "assistant", "user"))
)


@dataclass(frozen=True, slots=True)
class ChatShape:
    """A chat template as fixed texts.

    Attributes:
        turns: the text before and after the content of a turn, by role; a model may have no system role.
        prompt: the text after the last turn, where the assistant's answer begins.
        system: the system prompt of a chat that has none; None = no such prompt.
    """

    turns: Mapping[str, tuple[str, str]]
    prompt: str
    system: str | None

    def render(self, chat: Sequence[Turn]) -> str:
        """Return a chat as text up to the assistant's next answer, without the bos that servers add."""
        if self.system is not None and chat[0].role != "system":
            chat = (Turn("system", self.system), *chat)
        texts = ((*self.turns[turn.role], turn.content) for turn in chat)
        return "".join(f"{before}{content}{after}" for before, after, content in texts) + self.prompt


def chat_shape(tokenizer: PreTrainedTokenizerFast) -> ChatShape | None:
    """Return the shape of a tokenizer's chat template; None if it has none, or one of another kind."""
    if tokenizer.chat_template is None:
        return None
    try:
        shape = _derived(tokenizer)
        chats = [(_FIRST,), (_FIRST, _ANSWER, _SECOND)]
        if "system" in shape.turns:
            chats += [(_SYSTEM, *chat) for chat in chats]
        # The derivation looks at a few chats only, so the shape is believed only where it renders them all.
        agrees = all(shape.render(chat) == _rendered(chat, tokenizer, prompt=True) for chat in chats)
        return shape if agrees else None
    except (TemplateError, ValueError):
        return None


def _derived(tokenizer: PreTrainedTokenizerFast) -> ChatShape:
    """Derive the fixed texts from rendered chats.

    Raises:
        ValueError: the texts around a turn depend on other turns.
        TemplateError: the template refuses a chat.
    """
    # What begins every chat cannot be told from what begins a user's turn here; the second turn below tells
    # it.
    alone = _rendered((_FIRST,), tokenizer)
    prompt = _after(_rendered((_FIRST,), tokenizer, prompt=True), alone)
    _, user_after = _around(alone, _FIRST)
    whole = _rendered((_FIRST, _ANSWER, _SECOND), tokenizer)
    head, following = _around(whole, _FIRST)
    answer, following = _around(_after(following, user_after), _ANSWER)
    _, answer_after = _around(_rendered((_FIRST, _ANSWER), tokenizer), _ANSWER)
    user_before, _ = _around(_after(following, answer_after), _SECOND)
    turns = {"user": (user_before, user_after), "assistant": (answer, answer_after)}
    default = _before(head, user_before)
    system = _system_turn(user_before, tokenizer)
    if system is not None:
        turns["system"] = system
    if not default:
        return ChatShape(turns, prompt, None)
    if system is None:
        raise ValueError("a default prompt without a system role")
    return ChatShape(turns, prompt, _before(_after(default, system[0]), system[1]))


def _system_turn(user_before: str, tokenizer: PreTrainedTokenizerFast) -> tuple[str, str] | None:
    """Return the text around a system turn; None if the model has none, or writes it into the user's turn."""
    try:
        before, following = _around(_rendered((_SYSTEM, _FIRST), tokenizer), _SYSTEM)
        return before, _before(_around(following, _FIRST)[0], user_before)
    except (TemplateError, ValueError):
        return None


def _around(text: str, turn: Turn) -> tuple[str, str]:
    before, content, after = text.partition(turn.content)
    if not content:
        raise ValueError(f"no {turn.role} turn in the text")
    return before, after


def _after(text: str, start: str) -> str:
    if not text.startswith(start):
        raise ValueError("another beginning")
    return text[len(start) :]


def _before(text: str, end: str) -> str:
    if not text.endswith(end):
        raise ValueError("another end")
    return text[: len(text) - len(end)]


def _rendered(chat: Sequence[Turn], tokenizer: PreTrainedTokenizerFast, *, prompt: bool = False) -> str:
    """Return a chat as text, without the bos that a server adds wherever the tokenizer adds one."""
    messages = [{"role": turn.role, "content": turn.content} for turn in chat]
    apply = cast(Any, tokenizer).apply_chat_template
    text = str(apply(messages, tokenize=False, add_generation_prompt=prompt))
    adds_bos = cast(list[int], tokenizer("a")["input_ids"])[0] == tokenizer.bos_token_id
    return text.removeprefix(str(tokenizer.bos_token)) if adds_bos else text
