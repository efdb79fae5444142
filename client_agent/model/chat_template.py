"""The chat template of a tokenizer: the turns that it renders, and a template where a tokenizer has none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from client_agent.errors import DataInvalid, SettingsUnusable, TokenizerUnfit
from client_agent.model.special_text import Span, located
from schemas.user_files import read_text

PLAIN = "plain"
ASSISTANT = "assistant"
Arguments = Literal["object", "text"]
"""How a template expects the arguments of a call: as an object, or as the JSON of it."""
# An answer ends with eos, so that the end of every answer is learnt, not of the last alone.
_PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
_TAG = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
_BEGIN, _END = "\U0010fffb", "\U0010fffc"  # no text has these characters, see `special_text`
# Templates are programs; these are what transformers and Jinja raise for a chat that they do not expect.
_TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat.

    Attributes:
        fields: further keys of the message, as JSON: `tool_calls`, `reasoning_content`, `name`,
            `tool_call_id`; empty = none.
        learnt: whether the turn is learnt if it is an assistant's.
    """

    role: str
    content: str
    fields: str = ""
    learnt: bool = True

    def message(self, arguments: Arguments = "object") -> dict[str, object]:
        """Return the turn as chat templates expect it."""
        fields = cast(dict[str, object], json.loads(self.fields)) if self.fields else {}
        if arguments == "text" and isinstance(calls := fields.get("tool_calls"), list):
            fields["tool_calls"] = [_with_text(call) for call in calls]
        return {"role": self.role, "content": self.content, **fields}


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


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
        template = read_text(file.expanduser())
        # transformers' own environment, which knows {% generation %} and runs templates in a sandbox
        cast(Any, chat_template_utils)._compile_jinja_template(template)
    except (OSError, ValueError) as error:
        raise SettingsUnusable(
            f"chat_template: {file} cannot be read ({error}); set it to {PLAIN} or the path of a .jinja file"
        ) from error
    except TemplateError as error:
        raise SettingsUnusable(f"chat_template: {file} is not a Jinja template: {error}") from error
    return template


def render(
    turns: Sequence[Turn],
    tokenizer: PreTrainedTokenizerFast,
    place: str = "",
    *,
    tools: str = "",
    prompt: bool = False,
    arguments: Arguments = "object",
    template: str | None = None,
) -> str:
    """Render turns as text; with `prompt` up to where the assistant's next answer begins.

    Args:
        tools: the tools of the chat as JSON; empty = none.
        template: another template than the tokenizer's.

    Raises:
        TokenizerUnfit: the tokenizer has no chat template.
        DataInvalid: the template refuses the chat.
    """
    if tokenizer.chat_template is None:
        raise TokenizerUnfit(
            "the data are chats, and this model's tokenizer has no chat template; set chat_template to plain "
            "or to a .jinja file, use a chat model, or write prompt and completion"
        )
    messages = [turn.message(arguments) for turn in turns]
    try:
        return str(
            cast(Any, tokenizer).apply_chat_template(
                messages,
                tools=json.loads(tools) if tools else None,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=prompt,
            )
        )
    except _TEMPLATE_ERRORS as error:
        raise DataInvalid(
            f"{located(place)}the model's chat template refuses this chat ({error}); change "
            "the order of its turns, or set chat_template to plain or to a .jinja file"
        ) from error


def has_generation_tags(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether the chat template marks what is learnt with `{% generation %}`."""
    return isinstance(tokenizer.chat_template, str) and _TAG.search(tokenizer.chat_template) is not None


def render_tagged(
    turns: Sequence[Turn],
    tokenizer: PreTrainedTokenizerFast,
    place: str = "",
    *,
    tools: str = "",
    arguments: Arguments = "object",
) -> tuple[str, list[Span]]:
    """Return turns as text, and the spans [start, end) between the template's generation tags.

    The tags are replaced by characters of their own. transformers' tracker keeps its state in the template,
    which threads share, and sees no tags in macros.

    Raises: see `render`.
    """
    template = _TAG.sub(
        lambda tag: f"{{%{tag[1]} if true %}}{_END if tag[2] else _BEGIN}{{% endif {tag[3]}%}}",
        str(tokenizer.chat_template),
    )
    marked = render(turns, tokenizer, place, tools=tools, arguments=arguments, template=template)
    text, spans, start = "", [], 0
    for piece in re.split(f"([{_BEGIN}{_END}])", marked):
        if piece == _BEGIN:
            start = len(text)
        elif piece == _END:
            spans.append((start, len(text)))
        else:
            text += piece
    return text, spans
