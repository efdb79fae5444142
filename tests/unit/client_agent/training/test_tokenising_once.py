"""Texts are tokenised in the first round, and not again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from transformers import PreTrainedTokenizerFast

from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.rounds.standalone import train_alone
from client_agent.sketches.gradient import sketch_of
from client_agent.storage.rate_store import RateStore
from client_agent.training.data import SiloData
from client_agent.training.silo import Silo
from schemas.messages.federations import AdapterPlan, RoundsPlan, SignaturePlan, TrainingPlan
from tests.scene.plans import federation_plan

PLAN = federation_plan(
    adapter=AdapterPlan(kind="lora", rank=4).model_dump(),
    rounds=RoundsPlan(total=2).model_dump(),
    training=TrainingPlan(steps=2, batch_size=4, max_length=64, learning_rate=0.01).model_dump(),
)


class CountingTokenizer:
    """A real tokenizer that counts the texts it is called with."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self.texts = 0

    def __call__(self, text: str, **options: Any) -> Any:
        self.texts += 1
        return self._tokenizer(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@pytest.fixture
def counted(tiny: Callable[..., BaseModel]) -> tuple[BaseModel, CountingTokenizer]:
    base = tiny()
    counter = CountingTokenizer(base.tokenizer)
    return replace(base, tokenizer=cast(PreTrainedTokenizerFast, counter)), counter


def test_second_round_tokenises_no_text(
    counted: tuple[BaseModel, CountingTokenizer], examples: Sequence[Example], tmp_path: Path
) -> None:
    base, counter = counted
    silo = Silo(base, SiloData(tuple(examples[:16]), (), tuple(examples[16:])), None)
    rounds = train_alone(silo, PLAN, None, lambda: False, RateStore(tmp_path), tmp_path)
    next(rounds)
    assert counter.texts == len(examples)
    next(rounds)
    assert counter.texts == len(examples)


def test_second_round_tokenises_no_option_or_question(
    counted: tuple[BaseModel, CountingTokenizer], examples: Sequence[Example], tmp_path: Path
) -> None:
    base, counter = counted
    choice = replace(examples[16], options=(examples[16].completion, "no"), metrics=("option_accuracy",))
    answer = replace(examples[17], metrics=("f1",))
    silo = Silo(base, SiloData(tuple(examples[:16]), (), (choice, answer)), None)
    rounds = train_alone(silo, PLAN, None, lambda: False, RateStore(tmp_path), tmp_path)
    assert next(rounds).scores.trained.keys() == {"loss", "perplexity", "option_accuracy", "f1"}
    assert counter.texts == 18 + 2 + 1
    next(rounds)
    assert counter.texts == 18 + 2 + 1


def test_examples_that_two_sets_share_are_tokenised_once(
    counted: tuple[BaseModel, CountingTokenizer], examples: Sequence[Example]
) -> None:
    base, counter = counted
    silo = Silo(base, SiloData(tuple(examples), (), ()), None)
    silo.encoded(examples[:8], 64)
    assert silo.encoded(examples[::-1], 64)[-8:] == silo.encoded(examples[7::-1], 64)
    assert counter.texts == len(examples)


def test_repeated_sketch_tokenises_no_text(
    counted: tuple[BaseModel, CountingTokenizer], examples: Sequence[Example]
) -> None:
    base, counter = counted
    plan = SignaturePlan(probe_examples=8)
    first = sketch_of(base, examples, plan)
    assert counter.texts == 8
    assert sketch_of(base, examples, plan).to_bytes() == first.to_bytes()
    assert counter.texts == 8


def test_texts_are_tokenised_again_for_another_length(
    counted: tuple[BaseModel, CountingTokenizer], examples: Sequence[Example]
) -> None:
    base, counter = counted
    silo = Silo(base, SiloData(tuple(examples), (), ()), None)
    long, short = silo.encoded(examples, 64), silo.encoded(examples, 4)
    assert counter.texts == 2 * len(examples)
    assert max(len(text.ids) for text in short) == 4 < max(len(text.ids) for text in long)
