"""Remarks about how examples are read, for `agent data`, `agent check` and the log of an agent's start."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from client_agent.console_counts import counted
from client_agent.model.chat import ASSISTANT
from client_agent.model.chat_template import has_generation_tags
from client_agent.model.comparable_text import folded
from client_agent.model.examples import Example, encode_example, learnt_parts
from client_agent.model.special_text import special_texts
from client_agent.model.stop_tokens import ends_of
from client_agent.model.template_facts import ending_fault, facts_of
from client_agent.training.data import SiloData, twins_between

_LISTED = 3


def remarks_on(data: SiloData, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Return a sentence for each surprise in how examples are read.

    Raises:
        TokenizerUnfit, DataInvalid: see `learnt_parts`.
    """
    chats = [example for example in data.all if example.turns]
    plain = [example for example in data.all if not example.turns]
    remarks = data.unused.sentences()
    if chats and plain:
        remarks.append(
            f"{len(chats)} rows are chats and {len(plain)} are plain texts, without the chat template; write "
            "all of them alike"
        )
    remarks += [*_twins(data), *_contradictions(data)]
    remarks += _special_texts(data.all, tokenizer)
    if chats:
        remarks += [*_endings(chats, tokenizer), *_not_learnt(chats, tokenizer)]
    return remarks


def _twins(data: SiloData) -> list[str]:
    """Return the number of examples in two sets, as explicit sources can have; see `Example.prompt_key`."""
    remarks = []
    for name, held_out in (("test", data.test), ("validation", data.validation)):
        if twins := twins_between(data.train, held_out):
            remarks.append(
                f"{len(twins)} training examples have the prompt of a {name} example, up to case and spaces "
                f"(such as {_named(twins[0])}): scores of these are too good; remove them from the training "
                "source. Under privacy.training they are not trained on"
            )
    if twins := twins_between(data.validation, data.test):
        remarks.append(
            f"{len(twins)} validation examples have the prompt of a test example (such as "
            f"{_named(twins[0])}); remove them from one of both sources"
        )
    return remarks


def _contradictions(data: SiloData) -> list[str]:
    """Return the number of prompts of the training set that have different answers."""
    answers: dict[str, set[str]] = {}
    first: dict[str, Example] = {}
    for example in data.train:
        if not example.is_raw_text:
            answers.setdefault(example.prompt_key, set()).add(
                folded(example.completion) + example.answer_fields
            )
            first.setdefault(example.prompt_key, example)
    several = [prompt for prompt, texts in answers.items() if len(texts) > 1]
    if not several:
        return []
    verb = "prompt has" if len(several) == 1 else "prompts have"
    return [
        f"{len(several)} training {verb} different answers in several rows (such as "
        f"{_named(first[several[0]])}); if that is not meant, correct or remove rows"
    ]


def _named(example: Example) -> str:
    return example.place or repr(" ".join((example.prompt or example.chat[0].content).split())[:40])


def _special_texts(examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> list[str]:
    as_text: list[list[str]] = []
    as_tokens: list[list[str]] = []
    for example in counted(examples, "searching special tokens", len(examples)):
        spelled = special_texts(_content(example), tokenizer)
        if spelled:
            is_text = bool(example.turns) or bool(learnt_parts(example, tokenizer).as_text)
            (as_text if is_text else as_tokens).append(spelled)
    remarks = []
    if as_text:
        remarks.append(f"{_rows(as_text)}: encoded as text, not as the tokens")
    if as_tokens:
        remarks.append(
            f"{_rows(as_tokens)} at their beginning or end: read as rendered chats, with the tokens"
        )
    return remarks


def _content(example: Example) -> str:
    parts = [(turn.content, turn.fields) for turn in example.chat]
    return "\0".join(
        (example.prompt + example.completion, example.tools, *(t for part in parts for t in part))
    )


def _rows(spelled: Sequence[Sequence[str]]) -> str:
    counts = Counter(token for tokens in spelled for token in set(tokens))
    listed = ", ".join(sorted(counts, key=lambda token: (-counts[token], token))[:_LISTED])
    more = ", ..." if len(counts) > _LISTED else ""
    verb = "row spells" if len(spelled) == 1 else "rows spell"
    return f"{len(spelled)} {verb} special tokens ({listed}{more})"


def _endings(chats: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> list[str]:
    if fault := ending_fault(tokenizer):
        return [fault]
    answers = max(sum(turn.role == ASSISTANT for turn in example.chat) for example in chats)
    if has_generation_tags(tokenizer):
        ends = ends_of(tokenizer)
        chats_read = counted(chats, "tokenising chats", len(chats))
        texts = [encode_example(example, tokenizer, sys.maxsize) for example in chats_read]
        count = sum(not any(a and i in ends for i, a in zip(t.ids, t.answer, strict=True)) for t in texts)
        return (
            [
                f"{count} chats do not learn to stop: no token that ends an answer stands between "
                "{% generation %} and {% endgeneration %} of the chat template; write {{ eos_token }} "
                "between them"
            ]
            if count
            else []
        )
    if facts_of(tokenizer).ending.kind != "eos":
        return []
    earlier = "; earlier answers of a chat do not learn to stop" if answers > 1 else ""
    return [
        f"the chat template ends answers with no token that stops generation: {tokenizer.eos_token} is added "
        f"after the last answer of each chat{earlier}. To change it, end answers with {{{{ eos_token }}}} "
        "in a .jinja file of your own (chat_template)"
    ]


def _not_learnt(chats: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> list[str]:
    missing = 0
    for example in counted(chats, "rendering chats", len(chats)):
        answers = sum(turn.role == ASSISTANT and turn.learnt for turn in example.chat)
        missing += max(0, answers - len(learnt_parts(example, tokenizer).spans))
    if not missing:
        return []
    return [
        f"{missing} earlier answers are read and not learnt: the chat template writes them otherwise once a "
        "turn follows"
    ]
