"""Remarks to the owner of data about how their examples are read."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from client_agent.data.unread_parts import UnreadParts
from client_agent.model.examples import Example, Turn
from client_agent.training.data import SiloData
from client_agent.training.remarks import remarks_on
from tests.scene.tiny_models import character_tokenizer

CHAT = "{% for m in messages %}{{ m.content }}END{% endfor %}"
SHORTENING = (
    "{% for m in messages %}"
    "{{ m.content if loop.last or m.role == 'user' else m.content[:1] }}<eos>{% endfor %}"
)
QUESTION = Turn("user", "hi")
PLAIN = Example("a", "b")
SINGLE = Example("", "yes", (QUESTION,))
LONG = Example("", "yes", (QUESTION, Turn("assistant", "no"), QUESTION))


def tokenizer(template: str) -> PreTrainedTokenizerFast:
    fast = character_tokenizer()
    fast.chat_template = template
    return fast


@pytest.mark.parametrize(
    ("examples", "template", "remarks"),
    [
        ([PLAIN, PLAIN], CHAT, []),
        ([SINGLE, LONG], CHAT.replace("END", "<eos>"), []),
        ([SINGLE, PLAIN, PLAIN], CHAT.replace("END", "<eos>"), ["1 rows are chats and 2 are plain texts"]),
        ([SINGLE], CHAT.replace("END", ""), ["<eos> is added after the last answer of each chat. To change"]),
        ([LONG], CHAT.replace("END", ""), ["of each chat; earlier answers of a chat do not learn to stop"]),
        ([SINGLE], CHAT.replace("END", "<pad>"), ["no answer ends with a token that stops generation"]),
        ([LONG, LONG], SHORTENING, ["2 earlier answers are read and not learnt"]),
        ([Example("a<eos>b", "c"), PLAIN], CHAT, ["1 row spells special tokens (<eos>): encoded as text"]),
        (
            [Example("", "<eos>", (Turn("user", "<bos><bos>"),))] * 2,
            CHAT.replace("END", "<eos>"),
            ["2 rows spell special tokens (<bos>, <eos>): encoded as text"],
        ),
        ([Example("<bos>b", "c")], CHAT, ["(<bos>) at their beginning or end: read as rendered chats"]),
    ],
)
def test_remarks_name_unexpected_parts_of_the_data(
    examples: list[Example], template: str, remarks: list[str]
) -> None:
    actual = remarks_on(SiloData((), (), tuple(examples)), tokenizer(template))
    assert len(actual) == len(remarks), actual
    assert all(part in remark for part, remark in zip(remarks, actual, strict=True)), actual


def test_remark_on_unused_columns_comes_first() -> None:
    data = SiloData((PLAIN,), (), (), unused=UnreadParts(frozenset({"tone"})))
    assert remarks_on(data, tokenizer(CHAT)) == ["not used: tone"]


def test_twins_and_contradictions_have_remarks() -> None:
    train = (Example("a b", "yes", place="x line 1"), Example("A  b", "no"), Example("c", "d"))
    data = SiloData(train, (Example("C", "d"),), (Example("a b", "yes"), Example("c", "d")))
    expected = (
        "3 training examples have the prompt of a test example, up to case and spaces (such as x line 1)",
        "1 training examples have the prompt of a validation example, up to case and spaces (such as 'c')",
        "1 validation examples have the prompt of a test example",
        "1 training prompt has different answers in several rows (such as x line 1)",
    )
    remarks = remarks_on(data, tokenizer(CHAT))
    assert len(remarks) == len(expected), remarks
    assert all(map(str.startswith, remarks, expected)), remarks
