"""Chat templates: rendered parts, ends of answers, and refusal of omissions by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from client_agent.errors import DataInvalid
from client_agent.model.chat import Turn, prompt_of, rendered_chat
from client_agent.model.examples import Example, encode_example, learnt_end
from client_agent.model.stop_tokens import ends_of, read_configured_stops
from client_agent.model.template_facts import ending_fault, facts_of
from tests.scene.tiny_models import character_tokenizer

LOOP = (
    "{% for m in messages %}[{{ m.role }}]BODY{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
BODY = "{{ m.content }}<eos>"
CALLS = (
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}ARGUMENTS{% endfor %}<eos>"
)
TOOLS = "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
OBJECT = CALLS.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
TEXT = CALLS.replace("ARGUMENTS", "{{ '~' + c.function.arguments }}")
CALL = {"type": "function", "function": {"name": "price", "arguments": {"item": "pot"}}}
ONE_CALL, TWO_CALLS = (json.dumps({"tool_calls": [CALL] * count}) for count in (1, 2))
REASON = json.dumps({"reasoning_content": "clay"})
TOOL = json.dumps([{"type": "function", "function": {"name": "price"}}])
QUESTION = Turn("user", "How much?")


def with_template(body: str, before: str = "") -> PreTrainedTokenizerFast:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = before + LOOP.replace("BODY", body)
    return tokenizer


@pytest.mark.parametrize(("body", "arguments"), [(OBJECT, '{"item": "pot"}'), (TEXT, '~{"item": "pot"}')])
def test_calls_and_tools_are_rendered(body: str, arguments: str) -> None:
    tokenizer = with_template(body, TOOLS)
    turns = (QUESTION, Turn("assistant", "", ONE_CALL), Turn("tool", "12"), Turn("assistant", "12", REASON))
    rendered = rendered_chat(turns, tokenizer, tools=TOOL)
    assert rendered.text.startswith("price;[user]How much?<eos>[assistant]price")
    assert [rendered.text[a:b] for a, b in rendered.spans] == [f"price{arguments}<eos>", "(clay)12<eos>"]


@pytest.mark.parametrize(
    ("body", "answer", "tools", "fact"),
    [
        (BODY, Turn("assistant", "12", ONE_CALL), "", r"does not render tool_calls \(.*ignore_columns"),
        (BODY, Turn("assistant", "12", ONE_CALL), TOOL, r"does not render tools .* and tool_calls .*"),
        (BODY, Turn("assistant", "12", REASON), "", r"does not render reasoning_content"),
        (OBJECT, Turn("assistant", "12"), TOOL, r"does not render tools"),
        (
            OBJECT.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]"),
            Turn("assistant", "", TWO_CALLS),
            "",
            "leaves out the second call of a turn of assistant",
        ),
        (
            OBJECT.replace("{{ m.content }}", "{{ m.content if not m.tool_calls else '' }}"),
            Turn("assistant", "I look.", ONE_CALL),
            "",
            "leaves out the content of a turn of assistant",
        ),
    ],
)
def test_template_that_leaves_out_parts_is_refused(body: str, answer: Turn, tools: str, fact: str) -> None:
    with pytest.raises(DataInvalid, match=f"rows line 2: .*{fact}"):
        rendered_chat((QUESTION, answer), with_template(body), "rows line 2", tools)


@pytest.mark.parametrize("role", ["system", "tool", "user", "critic"])
def test_template_that_leaves_out_a_role_is_refused(role: str) -> None:
    tokenizer = with_template(
        "{% if m.role != 'ROLE' %}{{ m.content }}{% endif %}<eos>".replace("ROLE", role)
    )
    turns = (Turn(role, "be kind"), Turn("usher", "a"), Turn("assistant", "b"))
    with pytest.raises(DataInvalid, match=f"leaves out the content of a turn of {role}"):
        rendered_chat(turns, tokenizer)
    with pytest.raises(DataInvalid, match=f"leaves out the content of a turn of {role}"):
        prompt_of(turns[:2], tokenizer)


@pytest.mark.parametrize("body", ["{{ m.content | tojson }}<eos>", "{{ m.content | trim }}<eos>"])
def test_template_may_quote_or_trim_content(body: str) -> None:
    turns = (Turn("tool", ' {"a": "b"}\n'), Turn("assistant", "b"))
    assert rendered_chat(turns, with_template(body)).spans


@pytest.mark.parametrize(
    ("body", "kind", "parts"),
    [
        (BODY, "template", ["yes<eos>", "done<eos>"]),
        (BODY + "\n", "template", ["yes<eos>", "done<eos>"]),
        ("{{ m.content }}", "eos", ["yes", "done<eos>"]),
        ("{{ m.content }}<pad>", "never", ["yes<pad>", "done<pad>"]),
    ],
)
def test_end_of_answers_is_found(body: str, kind: str, parts: list[str]) -> None:
    tokenizer = with_template(body)
    assert facts_of(tokenizer).ending.kind == kind
    assert learnt_texts(tokenizer) == parts
    assert (ending_fault(tokenizer) is not None) == (kind == "never")


def learnt_texts(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    example = Example("", "done", (QUESTION, Turn("assistant", "yes"), QUESTION))
    text = encode_example(example, tokenizer, 500)
    tokens = tokenizer.convert_ids_to_tokens(list(text.ids))
    pairs = zip(tokens, text.answer, strict=True)
    return "".join(token if answer else "\n" for token, answer in pairs).split()


def test_answer_may_end_with_the_next_turns_marker(tmp_path: Path) -> None:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<pad>' if m.role == 'user' else '<bos>' }}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<bos>{% endif %}"
    )
    assert learnt_texts(tokenizer) == ["yes", "done<eos>"]
    tokenizer = character_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<pad>' if m.role == 'user' else '<bos>' }}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<bos>{% endif %}"
    )
    config = tmp_path / "generation_config.json"
    config.write_text(json.dumps({"eos_token_id": [tokenizer.eos_token_id, tokenizer.pad_token_id]}))
    read_configured_stops(tokenizer, tmp_path)
    assert learnt_texts(tokenizer) == ["yes<pad>", "done<pad>"]
    assert learnt_end(Example("", "done", (QUESTION,)), tokenizer) == "<pad>"
    assert tokenizer.pad_token_id in ends_of(tokenizer)


def test_fault_of_answers_without_end_names_a_remedy() -> None:
    fault = ending_fault(with_template("{{ m.content }}<pad>")) or ""
    assert "no answer ends with a token that stops generation: the model will not learn to stop" in fault
    assert "ends answers with <pad>" in fault
    assert "{{ eos_token }}" in fault
