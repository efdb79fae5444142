"""Chats are refused by row and role where the template leaves out a part of a turn; remedies work."""

from __future__ import annotations

import json

import pytest
from transformers import PreTrainedTokenizerFast

from client_agent.errors import DataInvalid
from client_agent.model.chat import Turn, prompt_of, rendered_chat, set_template
from tests.scene.tiny_models import character_tokenizer

LOOP = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}ANSWER{% else %}{{ m.content }}"
    "{% endif %}<eos>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
WHOLE = "{{ m.content }}"
AFTER_THINKING = "{{ m.content.split('</think>')[-1] }}"
EMPTY_THINKING = "<think></think>" + AFTER_THINKING
REASONING = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}" + AFTER_THINKING
EARLIER_SHORT = "{% if loop.last %}{{ m.content }}{% else %}{{ m.content.split('</think>')[-1] }}{% endif %}"
THOUGHT = "<think>two and two are four</think>it is four"
QUESTION = Turn("user", "what is two and two")


def with_answers(answer: str) -> PreTrainedTokenizerFast:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = LOOP.replace("ANSWER", answer)
    return tokenizer


@pytest.mark.parametrize("content", [THOUGHT, "<think>four</think>4"])
@pytest.mark.parametrize("template", [AFTER_THINKING, EMPTY_THINKING, REASONING, "{{ m.content[:9] }}"])
def test_shortened_answer_is_refused_by_row(template: str, content: str) -> None:
    turns = (QUESTION, Turn("assistant", content))
    with pytest.raises(DataInvalid, match=r"rows line 3: .* a part of the content of a turn of assistant"):
        rendered_chat(turns, with_answers(template), "rows line 3")


def test_shortened_answer_quoted_by_question_is_refused() -> None:
    turns = (Turn("user", f"say: {THOUGHT}"), Turn("assistant", THOUGHT))
    with pytest.raises(DataInvalid, match="a part of the content of a turn of assistant"):
        rendered_chat(turns, with_answers("{{ m.content[:20] }}"))


def test_dropped_turn_of_one_letter_is_refused() -> None:
    turns = (Turn("system", "a"), QUESTION, Turn("assistant", "four"))
    tokenizer = with_answers(WHOLE)
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ m.content }}{% endif %}", "{{ m.content if m.role == 'user' }}{% endif %}"
    )
    with pytest.raises(DataInvalid, match="leaves out the content of a turn of system"):
        prompt_of(turns[:2], tokenizer)


@pytest.mark.parametrize("content", ["+", "-", "\u2713"])
def test_dropped_sign_is_refused(content: str) -> None:
    turns = (QUESTION, Turn("assistant", content))
    assert rendered_chat(turns, with_answers(WHOLE)).spans
    with pytest.raises(DataInvalid, match="content of a turn of assistant"):
        rendered_chat(turns, with_answers("{{ m.content if m.content not in '+-\u2713' else '' }}"))


def test_remedies_of_dropped_thinking_work() -> None:
    turns = (QUESTION, Turn("assistant", THOUGHT))
    tokenizer = with_answers(REASONING)
    with pytest.raises(DataInvalid, match=r"as reasoning_content of its turn, or set chat_template to plain"):
        rendered_chat(turns, tokenizer)
    fields = json.dumps({"reasoning_content": "two and two are four"})
    assert (
        "two and two are four"
        in rendered_chat((QUESTION, Turn("assistant", "it is four", fields)), tokenizer).text
    )
    set_template(tokenizer, "plain")
    assert THOUGHT in rendered_chat(turns, tokenizer).text


def test_shortened_reasoning_and_arguments_are_refused() -> None:
    fields = json.dumps({"reasoning_content": "tessera has reasons, and these are many more of them"})
    with pytest.raises(DataInvalid, match="a part of reasoning_content"):
        rendered_chat(
            (QUESTION, Turn("assistant", "four", fields)),
            with_answers(REASONING.replace("m.reasoning_content }}", "m.reasoning_content[:25] }}")),
        )


def test_earlier_answer_may_lose_its_thinking() -> None:
    turns = (QUESTION, Turn("assistant", THOUGHT), QUESTION, Turn("assistant", "four again"))
    rendered = rendered_chat(turns, with_answers(EARLIER_SHORT))
    assert [rendered.text[a:b] for a, b in rendered.spans] == ["four again<eos>"]
    tagged = "{% generation %}" + EARLIER_SHORT + "{% endgeneration %}"
    rendered = rendered_chat(turns, with_answers(tagged))
    assert [rendered.text[a:b] for a, b in rendered.spans] == ["four again"]
    with pytest.raises(DataInvalid, match="a part of the content"):
        rendered_chat((*turns[:3], Turn("assistant", THOUGHT)), with_answers(AFTER_THINKING))


@pytest.mark.parametrize("template", ["{{ m.content | trim }}", "{{ m.content | tojson }}"])
def test_trimmed_or_quoted_answer_is_whole(template: str) -> None:
    turns = (QUESTION, Turn("assistant", ' {"a": "b\nc"}\n'))
    assert rendered_chat(turns, with_answers(template)).spans


@pytest.mark.parametrize("content", ["+", "\u2713 <eos>"])
def test_quoted_sign_is_whole(content: str) -> None:
    assert rendered_chat(
        (QUESTION, Turn("assistant", content)), with_answers("{{ m.content | tojson }}")
    ).spans


def test_switches_of_instructions_may_be_left_out() -> None:
    tokenizer = with_answers(WHOLE)
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ m.content }}{% endif %}<eos>", "{{ m.content.replace('/no_think', '') }}{% endif %}<eos>"
    )
    turns = (Turn("system", "be brief. /no_think"), QUESTION, Turn("assistant", "four"))
    assert "be brief. [user]" in rendered_chat(turns, tokenizer).text.replace("<eos>", "")


def test_dropped_earlier_answer_is_not_learnt() -> None:
    tokenizer = with_answers(EARLIER_SHORT)
    turns = (QUESTION, Turn("assistant", "<think>two</think>"), QUESTION, Turn("assistant", "four"))
    rendered = rendered_chat(turns, tokenizer)
    assert [rendered.text[start:end] for start, end in rendered.spans] == ["four<eos>"]
