"""The features and the answer endings of a chat template, found once by rendering chats and comparing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerFast

from client_agent.errors import DataInvalid
from client_agent.model.chat_template import ASSISTANT, Arguments, Turn, render
from client_agent.model.stop_tokens import ends_of, stop_ids
from client_agent.model.tokens import tokens_of

_NAME, _KEY, _VALUE, _TOOL = "tessera_price", "tessera_item", "tessera pot", "tessera_offer"
_REASON = "tessera has reasons"
_QUESTION = Turn("user", "How much is it?")
_ANSWER = Turn(ASSISTANT, "A euro")
_CALL = {"type": "function", "id": "tessera01", "function": {"name": _NAME, "arguments": {_KEY: _VALUE}}}
_CALLING = Turn(ASSISTANT, "", json.dumps({"tool_calls": [_CALL]}))
_REASONING = Turn(ASSISTANT, "A euro", json.dumps({"reasoning_content": _REASON}))


def _tools(name: str) -> str:
    parameters = {"type": "object", "properties": {_KEY: {"type": "string", "description": "an item"}}}
    function = {"name": name, "description": "Return a price.", "parameters": parameters}
    return json.dumps([{"type": "function", "function": function}])


@dataclass(frozen=True, slots=True)
class Ending:
    """How the answers that a template renders end.

    `template`: with a token that ends generation. `marker`: `text`, the beginning of the next turn, is such a
    token. `eos`: with none, so that the tokenizer's eos is added after the last answer. `never`: with `text`,
    a special token that ends nothing. `unknown`: the template refuses the chats that would show it.
    """

    kind: Literal["template", "marker", "eos", "never", "unknown"]
    text: str = ""


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """The features that a template renders.

    Attributes:
        calls: how it expects the arguments of calls; None = it renders no calls.
        tools, reasoning: whether the tools of a chat, and the reasoning before an answer, are in the text.
    """

    calls: Arguments | None
    tools: bool
    reasoning: bool
    ending: Ending


_facts: WeakKeyDictionary[PreTrainedTokenizerFast, tuple[object, TemplateFacts]] = WeakKeyDictionary()


def facts_of(tokenizer: PreTrainedTokenizerFast) -> TemplateFacts:
    """Return the features that the tokenizer's chat template renders.

    Raises:
        TokenizerUnfit: the tokenizer has no chat template.
    """
    template, facts = _facts.get(tokenizer, (None, None))
    # A setting may replace the template after the first use.
    if facts is None or template != tokenizer.chat_template:
        facts = TemplateFacts(
            calls=_calls(tokenizer),
            tools=_appear([_TOOL], partial(render, [_QUESTION], tokenizer, tools=_tools(_TOOL))),
            reasoning=_appear([_REASON], partial(render, [_QUESTION, _REASONING], tokenizer)),
            ending=_ending(tokenizer),
        )
        _facts[tokenizer] = tokenizer.chat_template, facts
    return facts


def _calls(tokenizer: PreTrainedTokenizerFast) -> Arguments | None:
    """Return how arguments of calls are rendered without quotes around them; None if calls are not."""
    styles: tuple[Arguments, ...] = ("object", "text")
    for arguments in styles:
        chat = partial(
            render, [_QUESTION, _CALLING], tokenizer, tools=_tools(_NAME), arguments=arguments, prompt=False
        )
        prompt = partial(render, [_QUESTION], tokenizer, tools=_tools(_NAME), prompt=True)
        if _appear([_NAME, _KEY, _VALUE], chat, after=prompt) and not _appear([f'\\"{_KEY}'], chat):
            return arguments
    return None


def _appear(texts: Sequence[str], rendered: Any, after: Any = None) -> bool:
    """Whether all texts are in a rendered chat, behind the length of another one if it is given."""
    try:
        start = len(after()) if after is not None else 0
        whole = rendered()
    except DataInvalid:
        return False
    return all(text in whole[start:] for text in texts)


def _ending(tokenizer: PreTrainedTokenizerFast) -> Ending:
    try:
        answered = render([_QUESTION, _ANSWER], tokenizer).rstrip()
        longer = render([_QUESTION, _ANSWER, _QUESTION], tokenizer)
    except DataInvalid:
        return Ending("unknown")
    ids, _ = tokens_of(tokenizer, answered, special=False)
    if ids[-1] in stop_ids(tokenizer):
        return Ending("template")
    if ids[-1] in ends_of(tokenizer):
        return Ending("never", str(cast(Any, tokenizer).convert_ids_to_tokens(ids[-1])))
    # Then the beginning of the next turn may be what ends an answer.
    if longer.startswith(answered):
        for token, (start, end) in zip(*tokens_of(tokenizer, longer, special=False), strict=True):
            if end > len(answered) and longer[start:end].strip():
                following = longer[len(answered) : end]
                return Ending("marker", following) if token in stop_ids(tokenizer) else Ending("eos")
    return Ending("eos")


def ending_fault(tokenizer: PreTrainedTokenizerFast) -> str | None:
    """Return the fault of a template whose answers end with no token that stops generation; None = none."""
    ending = facts_of(tokenizer).ending
    if ending.kind != "never":
        return None
    return (
        "no answer ends with a token that stops generation: the model will not learn to stop; the chat "
        f"template ends answers with {ending.text}, and the end-of-sequence token is {tokenizer.eos_token}: "
        "end answers with {{ eos_token }} in a .jinja file of your own (chat_template), or name "
        f"{ending.text} in eos_token_id of the model's generation_config.json"
    )
