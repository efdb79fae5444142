"""Scores in batches equal scores per text and those of public generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional as nnf
from transformers import GenerationConfig

from client_agent.errors import DataInvalid, LossNotFinite, TextTooLong
from client_agent.model.examples import Example, Task, Turn, encode_for, encode_prompt, encode_question
from client_agent.model.forward import grouped_by_length
from client_agent.model.generation import Decoding, completion, completions
from client_agent.model.loading import BaseModel
from client_agent.training.data import load_data
from client_agent.training.evaluate import evaluate, mean_loss, teacher_forced
from schemas.messages.federations import AdapterPlan, ScoresPlan, TrainingPlan
from schemas.messages.scores import Score
from tests.scene.local_training import train_examples
from tests.scene.models import inject_random_pq
from tests.scene.tensors import random_tensors
from tests.unit.client_agent.model.test_generation import TEMPLATE

ADAPTER = AdapterPlan(rank=8, blocks=2, private_rank=2)
LETTERS = [Example(f"x {letter}=", letter * 2) for letter in "abcdefgh"]


def loss_of_public_model(
    base: BaseModel, prompt: str, answer: str, *, closed: bool, special: bool = True
) -> list[float]:
    """Return the losses of an answer's tokens, one text at a time."""
    start = base.tokenizer(prompt, return_tensors="pt", add_special_tokens=special)["input_ids"]
    ids = base.tokenizer(prompt + answer, return_tensors="pt", add_special_tokens=special)["input_ids"]
    if closed:
        ids = torch.cat([ids, torch.tensor([[base.tokenizer.eos_token_id]])], dim=1)
    with torch.no_grad():
        logits = cast(Any, base.model)(input_ids=ids).logits[0, start.shape[1] - 1 : -1].float()
    return cast(list[float], nnf.cross_entropy(logits, ids[0, start.shape[1] :], reduction="none").tolist())


def test_batched_loss_equals_public_model_per_text(
    each_architecture: BaseModel, examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, texts = each_architecture, encode_for(each_architecture, examples, 64)
    expected = np.concatenate(
        [loss_of_public_model(base, e.prompt, e.completion, closed=True) for e in examples]
    ).mean()
    assert mean_loss(base, texts) == pytest.approx(expected, rel=1e-5)
    # The head runs on parts of few positions.
    monkeypatch.setattr("client_agent.training.token_losses.LOGITS_AT_ONCE", 3 * 48)
    assert mean_loss(base, texts) == pytest.approx(expected, rel=1e-5)


def test_likeliest_option_equals_that_of_public_model(
    each_architecture: BaseModel, examples: list[Example]
) -> None:
    base = each_architecture
    questions = [
        replace(
            example,
            options=(example.completion, "a", "zzzz", example.completion[:2] + "b"),
            metrics=("option_accuracy",),
        )
        for example in examples
    ]
    right = 0
    for example in questions:
        means = [
            np.mean(loss_of_public_model(base, example.prompt, o, closed=False)) for o in example.options
        ]
        right += int(np.argmin(means)) == 0
    score = evaluate(base, questions, max_length=64).scores()["option_accuracy"]
    assert score.count == len(questions)
    assert score.value == right / len(questions)


def test_options_with_a_common_ending_compare_by_it(tiny: Callable[..., BaseModel]) -> None:
    """The right word may be a rare one: what counts is how well the rest follows it."""
    base, words, differ = tiny(), ("bb", "qa", "xy1"), 0
    options = tuple(f"{word} is x" for word in words)
    for prompt in ("rev ", "k ", "x 1=", "|"):
        by_ending = [
            np.mean(loss_of_public_model(base, prompt + word, " is x", closed=False)) for word in words
        ]
        whole = [np.mean(loss_of_public_model(base, prompt, o, closed=False)) for o in options]
        differ += int(np.argmin(by_ending) != np.argmin(whole))
        right = options[np.argmin(by_ending)]
        for option in options:
            question = Example(prompt, option, options=options, ending=" is x", metrics=("option_accuracy",))
            score = evaluate(base, [question], max_length=64).scores()["option_accuracy"]
            assert score.value == float(option == right)
    assert differ > 0


def test_batched_generation_equals_generation_per_prompt(
    each_architecture: BaseModel, examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of many lengths, adapters in place, and a generation_config of the model's own."""
    base = each_architecture
    monkeypatch.setattr(base.model, "generation_config", GenerationConfig(repetition_penalty=5.0))
    prompts = [encode_prompt(e.prompt, base.tokenizer, chat=False) for e in examples[:8]]
    with inject_random_pq(base, ADAPTER) as adapter:
        adapter.load(random_tensors(adapter.layout, scale=2.0))
        together = completions(base, prompts, max_new_tokens=8)
        alone = [completion(base, prompt, Decoding(8)).text for prompt in prompts]
    assert together == alone
    assert len(set(together)) > 1
    assert cast(Any, base.model).generation_config.repetition_penalty == 5.0


def test_trained_models_answers_are_scored_as_generated(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    questions = [
        replace(e, references=("no", e.completion), metrics=("exact_match", "f1")) for e in LETTERS
    ] + [Example("x 1=", "22", metrics=("exact_match",))]
    with inject_random_pq(base, ADAPTER) as adapter:
        plan = TrainingPlan(steps=25, max_length=64, learning_rate=0.03)
        train_examples(base, adapter, LETTERS, plan)
        result = evaluate(base, questions, max_length=64)
        forced = teacher_forced(base, encode_for(base, questions, 64))
        silent = evaluate(base, questions, ScoresPlan(new_tokens=0), max_length=64).scores()
    scores = result.scores()
    assert 0 < forced.teacher_forced_match < 1
    assert scores["exact_match"].value == pytest.approx(forced.teacher_forced_match)
    assert {name: score.count for name, score in scores.items()} == {
        "loss": 9,
        "perplexity": 9,
        "exact_match": 9,
        "f1": 8,
    }
    assert scores["perplexity"].value == pytest.approx(exp(scores["loss"].value))
    assert silent.keys() == {"loss", "perplexity"}


def test_scores_use_the_same_examples_in_any_order(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base, plan = tiny(), ScoresPlan(examples=5)
    few = evaluate(base, examples, plan, max_length=64)
    assert few.scores() == evaluate(base, [*examples[::-1], examples[0]], plan, max_length=64).scores()
    assert few.scores()["loss"].count == 5
    assert few.loss != evaluate(base, examples, max_length=64).loss


def test_task_scores_equal_scores_of_its_examples(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    plan = ScoresPlan(examples=6, new_tokens=4)
    tasks = [Task("first", "-"), Task("second", "-")]
    tested = [
        replace(e, metrics=("rouge_l",), references=("a", e.completion), task=tasks[i % 2])
        for i, e in enumerate(LETTERS[:6])
    ]
    scores = evaluate(base, tested, plan, max_length=64)
    assert list(scores.tasks) == ["first", "second"]
    for number, task in enumerate(tasks):
        alone = evaluate(base, tested[number::2], plan, max_length=64).scores()
        by_task = scores.tasks[task.name]
        assert by_task.keys() == alone.keys()
        for name, score in by_task.items():
            assert score.value == pytest.approx(alone[name].value, rel=1e-5)
            assert score.count == alone[name].count == 3
    assert not evaluate(
        base, [*tested, LETTERS[6]], ScoresPlan(examples=7, new_tokens=0), max_length=64
    ).tasks


def test_chat_options_and_question_follow_the_template(tiny: Callable[..., BaseModel]) -> None:
    base, prompt, options = tiny(), "<user>x\n<assistant>", ("ab", "ba", "qqqq")
    base.tokenizer.chat_template = TEMPLATE
    means = [np.mean(loss_of_public_model(base, prompt, o, closed=False, special=False)) for o in options]
    for index, option in enumerate(options):
        chat = Example("", option, (Turn("user", "x"),), options, metrics=("option_accuracy",))
        assert encode_question(chat, base.tokenizer, 64) == encode_prompt("x", base.tokenizer, chat=True)
        score = evaluate(base, [chat], max_length=64).scores()["option_accuracy"]
        assert score.value == float(index == np.argmin(means))


def test_long_prompt_loses_its_start(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    bos, *ids = encode_question(Example("abcdef", "x"), base.tokenizer, 64)
    assert encode_question(Example("abcdef", "x"), base.tokenizer, 4) == [bos, *ids[-3:]]
    small = tiny(max_position_embeddings=12)
    long = Example("abcdefghijkl", "x", metrics=("exact_match",))
    assert evaluate(small, [long], max_length=12).scores()["exact_match"].count == 1
    with pytest.raises(TextTooLong, match="reads 9 at most"):
        completions(small, [[5] * 10], max_new_tokens=4)


def test_empty_set_of_examples_is_not_scored(tiny: Callable[..., BaseModel], tmp_path: Path) -> None:
    """The reference reported a perplexity of 1 for an empty set (defect 8 of fed_vemoe's)."""
    base = tiny()
    for score in (lambda: evaluate(base, [], max_length=64), lambda: mean_loss(base, ())):
        with pytest.raises(DataInvalid, match="no example to score"):
            score()
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Score(value=0.0, count=0)
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 9)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataInvalid, match=r"empty\.jsonl"):
        load_data(tmp_path / "train.jsonl", tmp_path / "empty.jsonl")


def test_groups_are_bounded_and_complete() -> None:
    lengths = [3, 50, 8, 1, 120, 7, 8]
    groups = list(grouped_by_length(lengths, 100))
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert all(len(g) * max(lengths[i] for i in g) <= 100 or g == [4] for g in groups)
    assert len(groups) == 3  # 120; 50, 8; the other ones
    assert not list(grouped_by_length([]))


def test_model_that_outputs_nonsense_is_not_scored(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    with torch.no_grad():
        base.model.get_submodule("model.norm").get_parameter("weight").fill_(float("nan"))
    with pytest.raises(LossNotFinite, match="float32 or bfloat16"):
        evaluate(base, examples, max_length=64)
