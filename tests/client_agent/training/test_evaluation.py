"""Scores without generation say what generation would say."""

from __future__ import annotations

from collections.abc import Callable
from math import exp

import numpy as np
import pytest
import torch

from client_agent.adapters.frames import random_frames
from client_agent.adapters.inject import inject_pq
from client_agent.errors import LossNotFinite
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.training.evaluate import evaluate
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.local_training import train_examples

ADAPTER = AdapterPlan(rank=8, blocks=2)


def written_by_greedy_decoding(base: BaseModel, example: Example) -> bool:
    prompt = base.tokenizer(example.prompt, return_tensors="pt")
    with torch.no_grad():
        ids = base.model.generate(**prompt, max_new_tokens=12, do_sample=False)  # type: ignore[operator]
    answer = base.tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :])
    return answer.split("<pad>")[0] == example.completion + "<eos>"


@pytest.mark.filterwarnings("default")
def test_exact_match_is_that_of_greedy_decoding(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    letters = [Example(f"x {letter}=", letter * 2) for letter in "abcdefgh"]
    with inject_pq(base, ADAPTER, random_frames(base, ADAPTER, 0), gated=False) as adapter:
        plan = TrainingPlan(steps=25, max_length=64, learning_rate=0.03)
        train_examples(base, adapter, letters, plan, seed=0, round_number=1)
        metrics = evaluate(base, [*letters, *examples[:4]], max_length=64)
        decoded = [written_by_greedy_decoding(base, example) for example in [*letters, *examples[:4]]]
    assert 0 < metrics.exact_match < 1
    assert metrics.exact_match == pytest.approx(np.mean(decoded))


def test_scores_do_not_depend_on_batches(each_architecture: BaseModel, examples: list[Example]) -> None:
    single, batched = (
        evaluate(each_architecture, examples, max_length=64, batch_size=size) for size in (1, 7)
    )
    assert single.loss == pytest.approx(batched.loss, rel=1e-5)
    assert single.exact_match == batched.exact_match
    assert single.perplexity == pytest.approx(exp(single.loss))


def test_a_model_that_outputs_nonsense_is_not_scored(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    with torch.no_grad():
        base.model.get_submodule("model.norm").get_parameter("weight").fill_(float("nan"))
    with pytest.raises(LossNotFinite, match="float32 or bfloat16"):
        evaluate(base, examples, max_length=64)
