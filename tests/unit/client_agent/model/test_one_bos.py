"""One bos per text: none is added to a text that begins with it, in training, prompts and counts."""

from __future__ import annotations

import pytest

from client_agent.cli.data import _marked
from client_agent.model.examples import Example, encode_example, encode_prompt, encode_question, encode_whole
from client_agent.model.tokens import tokens_of
from tests.scene.tiny_models import character_tokenizer

RENDERED = "<bos>user: hi\nassistant:"


@pytest.mark.parametrize("before", ["", "\n", " "])
def test_rendered_chat_gets_no_second_bos(before: str) -> None:
    tokenizer = character_tokenizer()
    bos = tokenizer.bos_token_id
    for example in (Example(before + RENDERED, " yes<eos>"), Example("", before + RENDERED + " yes<eos>")):
        assert encode_example(example, tokenizer, 100).ids.count(bos) == 1
    assert encode_prompt(before + RENDERED, tokenizer, chat=False).count(bos) == 1
    assert encode_question(Example(before + RENDERED, " yes"), tokenizer, 100).count(bos) == 1


def test_plain_text_keeps_its_added_bos() -> None:
    tokenizer = character_tokenizer()
    assert encode_prompt("hi", tokenizer, chat=False)[0] == tokenizer.bos_token_id
    ids, _ = tokens_of(tokenizer, "say <bos>", special=True, as_text=((4, 9),))
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokens_of(tokenizer, "<bos>hi", special=False)[0].count(tokenizer.bos_token_id) == 1


def test_pieces_of_rendered_text_begin_with_bos() -> None:
    tokenizer = character_tokenizer()
    pieces = encode_whole(Example("", "<bos>abcdefgh"), tokenizer, 5)
    assert [piece.ids[0] for piece in pieces] == [tokenizer.bos_token_id] * len(pieces)
    assert not any(piece.answer[0] for piece in pieces)


@pytest.mark.parametrize(
    ("example", "shown"),
    [
        (Example("ask: ", "yes"), "<bos>ask: »yes<eos>«"),
        (Example("<bos>ask: ", "yes<eos>"), "<bos>ask: »yes<eos>«"),
        (Example("", "<bos>yes<eos>"), "»<bos>yes<eos>«"),
    ],
)
def test_shown_example_has_every_token(example: Example, shown: str) -> None:
    tokenizer = character_tokenizer()
    assert _marked(example, tokenizer).plain == shown
    text = shown.replace("»", "").replace("«", "")
    assert len(encode_example(example, tokenizer, 100).ids) == len(
        tokens_of(tokenizer, text, special=False)[0]
    )
