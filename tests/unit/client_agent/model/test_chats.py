"""Chats and raw texts: learnt answers, chosen templates, and division of long texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from client_agent.errors import DataInvalid, SettingsUnusable, TokenizerUnfit
from client_agent.model.chat import Turn, set_template
from client_agent.model.examples import Example, encode_example, encode_for, encode_whole, learnt_parts
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET, TokenizedText
from tests.scene.tiny_models import character_tokenizer

CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
STRICT = "{% if messages[0].role != 'user' %}{{ raise_exception('a user begins') }}{% endif %}" + CHAT
# An earlier answer is shortened once another turn follows, as templates do that drop reasoning.
FORGETFUL = (
    "{% for m in messages %}<|{{ m.role }}|>\n"
    "{{ m.content if m.role == 'user' or loop.last else m.content[:1] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
TURNS = (Turn("user", "hi"), Turn("assistant", "yes"), Turn("user", "go"))


def tokenizer_with(template: str | None) -> PreTrainedTokenizerFast:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def learnt_text(text: TokenizedText, tokenizer: PreTrainedTokenizerFast) -> str:
    ids = [i for i, answer in zip(text.ids, text.answer, strict=True) if answer]
    return "".join(tokenizer.convert_ids_to_tokens(ids))


def test_template_that_changes_earlier_answers_keeps_last() -> None:
    tokenizer = tokenizer_with(FORGETFUL)
    text = encode_example(Example("", "done", TURNS), tokenizer, 256)
    assert learnt_text(text, tokenizer) == "done<eos>"


def test_long_chat_is_cut_at_its_start() -> None:
    tokenizer = tokenizer_with(CHAT)
    example = Example("", "done", TURNS)
    whole = encode_example(example, tokenizer, 256)
    cut = encode_example(example, tokenizer, len(whole.ids) - 12)
    assert cut.ids == whole.ids[12:]
    assert cut.answer == whole.answer[12:]


def test_chat_refused_by_template_names_its_row() -> None:
    turns = (Turn("assistant", "hello"), Turn("user", "go"))
    example = Example("", "done", turns, place="chats.jsonl: row 3")
    assert learnt_text(encode_example(example, tokenizer_with(CHAT), 256), character_tokenizer()) == (
        "hello<eos>done<eos>"
    )
    with pytest.raises(DataInvalid, match=r"chats.jsonl: row 3: .*refuses this chat \(a user begins\)"):
        learnt_parts(example, tokenizer_with(STRICT))


def test_example_equality_ignores_place_of_its_row() -> None:
    first, second = (Example("", "done", TURNS, place=place) for place in ("a: row 1", "b: row 2"))
    assert first == second
    assert first.key == second.key
    assert first.key != Example("", "done", (*TURNS[:1], Turn("assistant", "no"), *TURNS[2:])).key


def test_plain_template_writes_lines_that_end_answers() -> None:
    tokenizer = tokenizer_with(None)
    with pytest.raises(TokenizerUnfit, match="set chat_template to plain"):
        learnt_parts(Example("", "done", TURNS), tokenizer)
    set_template(tokenizer, "plain")
    parts = learnt_parts(Example("", "done", TURNS), tokenizer)
    assert parts.text == "<bos>user: hi\nassistant: yes<eos>\nuser: go\nassistant: done<eos>"
    assert [parts.text[a:b] for a, b in parts.spans] == [" yes<eos>", " done<eos>"]
    text = encode_example(Example("", "done", TURNS), tokenizer, 256)
    assert text.ids.count(tokenizer.bos_token_id) == 1


def test_template_may_be_a_file(tmp_path: Path) -> None:
    file, tokenizer = tmp_path / "chat.jinja", tokenizer_with(None)
    with pytest.raises(SettingsUnusable, match=r"chat_template: .*cannot be read"):
        set_template(tokenizer, str(file))
    file.write_text("{% for m in messages %}")
    with pytest.raises(SettingsUnusable, match="is not a Jinja template"):
        set_template(tokenizer, str(file))
    file.write_text(CHAT)
    set_template(tokenizer, str(file))
    assert tokenizer.chat_template == CHAT
    set_template(tokenizer, None)
    assert tokenizer.chat_template == CHAT


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(letters=st.text("abcdef", min_size=1, max_size=40), limit=st.integers(2, 20), bos=st.booleans())
def test_raw_text_tokens_are_targets_exactly_once(letters: str, limit: int, bos: bool) -> None:
    tokenizer = character_tokenizer()
    if not bos:
        tokenizer.backend_tokenizer.post_processor = None
    whole = encode_example(Example("", letters), tokenizer, 1000)
    pieces = encode_whole(Example("", letters), tokenizer, limit)
    targets = [target for piece in pieces for target in piece.targets() if target != NO_TARGET]
    assert targets == [target for target in whole.targets() if target != NO_TARGET]
    assert all(2 <= len(piece.ids) <= limit for piece in pieces)
    assert all(not bos or piece.ids[0] == tokenizer.bos_token_id for piece in pieces)
    assert len(pieces) > 1 or len(whole.ids) <= limit


def test_long_raw_text_is_split_for_training(tiny: Callable[..., BaseModel]) -> None:
    texts = encode_for(tiny(), [Example("", "abcdefgh"), Example("a", "b" * 20)], 6)
    assert [len(text.ids) for text in texts] == [6, 5, 6]


TAGGED = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}{{ m.content }}END"
    "{% endgeneration %}OUT{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.mark.parametrize(
    ("end", "out", "expected"), [("<eos>", "", "yes<eos>done<eos>"), ("", "<eos>", "yesdone")]
)
def test_text_between_generation_tags_is_learnt(tmp_path: Path, end: str, out: str, expected: str) -> None:
    file, tokenizer = tmp_path / "chat.jinja", tokenizer_with(None)
    file.write_text(TAGGED.replace("END", end).replace("OUT", out))
    set_template(tokenizer, str(file))
    text = encode_example(Example("", "done", TURNS), tokenizer, 256)
    assert learnt_text(text, tokenizer) == expected
    unweighted = (TURNS[0], Turn("assistant", "yes", learnt=False), TURNS[2])
    assert "yes" not in learnt_text(
        encode_example(Example("", "done", unweighted), tokenizer, 256), tokenizer
    )
