"""Tokens by character offsets: answers, truncation, and padding without effect."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as nnf

from client_agent.errors import TokenizerUnfit
from client_agent.model.examples import Example, Turn, encode_all, encode_example
from client_agent.model.forward import answer_logits
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET, collate, encode, pad_id

CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@pytest.fixture(scope="module")
def base(tiny: Callable[..., BaseModel]) -> BaseModel:
    return tiny()


def test_answer_and_its_end_alone_carry_the_loss(base: BaseModel) -> None:
    text = encode(base.tokenizer, "ab=", "cd", max_length=64)
    tokens = base.tokenizer.convert_ids_to_tokens(list(text.ids))
    assert tokens == ["<bos>", "a", "b", "=", "c", "d", "<eos>"]
    assert text.answer == (False, False, False, False, True, True, True)
    assert text.spans == ((0, 0), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 0))
    c, d, eos = text.ids[4:]
    assert text.targets() == [NO_TARGET, NO_TARGET, NO_TARGET, c, d, eos, NO_TARGET]


def test_token_across_the_border_belongs_to_the_answer(tiny: Callable[..., BaseModel]) -> None:
    text = encode(tiny(pairs=True).tokenizer, "abc", "def", max_length=64)
    assert text.spans[1:4] == ((0, 2), (2, 4), (4, 6))
    assert text.answer == (False, False, True, True, True)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=st.integers(1, 40), answer=st.integers(1, 40), limit=st.integers(2, 50))
def test_truncated_text_keeps_context_and_a_target(
    base: BaseModel, prompt: int, answer: int, limit: int
) -> None:
    text = encode(base.tokenizer, "a" * prompt, "b" * answer, max_length=limit)
    assert len(text.ids) == min(limit, prompt + answer + 2)
    assert any(target != NO_TARGET for target in text.targets())
    assert not text.answer[0]
    remaining = sum(text.answer)
    if remaining < answer + 1:  # the answer was cut: at its end, and only since it needs more than half
        assert remaining >= limit - limit // 2
        assert text.ids[-1] != base.tokenizer.eos_token_id
    if limit > 2 and limit // 2 > 1:
        assert text.ids[0] == base.tokenizer.bos_token_id


def test_padding_changes_neither_loss_nor_gradient(
    each_architecture: BaseModel, examples: list[Example]
) -> None:
    base = each_architecture
    texts = encode_all(examples[:4], base.tokenizer, 64)
    weight = base.parts.linear(base.model, 1, "v").get_parameter("weight").requires_grad_(True)
    results = []
    for length in (None, 50):
        batch = collate(texts, pad=pad_id(base.tokenizer), length=length)
        loss = nnf.cross_entropy(*answer_logits(base, batch), reduction="sum")
        results.append((loss, *torch.autograd.grad(loss, weight)))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-5)
    alone = sum(
        nnf.cross_entropy(
            *answer_logits(base, collate([text], pad=pad_id(base.tokenizer))),
            reduction="sum",
        )
        for text in texts
    )
    torch.testing.assert_close(results[0][0], alone, rtol=1e-5, atol=1e-5)


def test_padding_token_is_never_a_target(base: BaseModel) -> None:
    texts = encode_all([Example("a", "b"), Example("a longer one ", "here")], base.tokenizer, 64)
    batch = collate(texts, pad=pad_id(base.tokenizer))
    assert batch.answers == 2 + 5
    assert (batch.targets[batch.attention == 0] == NO_TARGET).all()
    assert batch.tokens == sum(len(text.ids) for text in texts)


def chat(tiny: Callable[..., BaseModel], template: str) -> BaseModel:
    base = tiny()
    base.tokenizer.chat_template = template
    return base


def test_answers_of_a_chat_all_carry_the_loss(tiny: Callable[..., BaseModel]) -> None:
    tokenizer = chat(tiny, CHAT).tokenizer
    turns = (Turn("user", "hi"), Turn("assistant", "yes"), Turn("user", "go"))
    text = encode_example(Example("", "done", turns), tokenizer, 256)
    answer = [i for i, answer in zip(text.ids, text.answer, strict=True) if answer]
    assert tokenizer.convert_ids_to_tokens(answer) == [*"yes", "<eos>", *"done", "<eos>"]
    assert text.ids.count(tokenizer.eos_token_id) == 4
    assert tokenizer.bos_token_id not in text.ids  # what the template does not write is not added


def test_chat_without_a_template_is_refused(tiny: Callable[..., BaseModel]) -> None:
    with pytest.raises(TokenizerUnfit, match="no chat template"):
        encode_example(Example("", "done", (Turn("user", "go"),)), tiny().tokenizer, 64)


def test_template_that_changes_earlier_turns_is_refused(tiny: Callable[..., BaseModel]) -> None:
    tokenizer = chat(tiny, "{{ messages|length }}" + CHAT).tokenizer
    with pytest.raises(TokenizerUnfit, match="changes earlier turns"):
        encode_example(Example("", "done", (Turn("user", "go"),)), tokenizer, 64)
