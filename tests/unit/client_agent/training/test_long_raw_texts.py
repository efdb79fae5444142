"""Long raw texts: many pieces for training, one per example for scores and sketches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from client_agent.model.examples import Example, encode_beginnings, encode_for, encode_some, probe_set
from client_agent.model.loading import BaseModel
from client_agent.rounds.examine import Examiner
from client_agent.sketches.gradient import sketch_of
from client_agent.training.data import MIN_VALIDATION, SiloData
from client_agent.training.evaluate import evaluate, mean_loss
from client_agent.training.silo import Silo
from schemas.messages.federations import ScoresPlan, SignaturePlan

LONG = tuple(Example("", first * 200 + last * 900) for first, last in ("ab", "cd", "ef"))
SAME_BEGINNINGS = tuple(Example("", first * 200 + last * 900) for first, last in ("ax", "cy", "ez"))


def test_scores_count_one_text_per_planned_example(tiny: Callable[..., BaseModel]) -> None:
    base, plan = tiny(), ScoresPlan(examples=3)
    assert len(encode_for(base, LONG, 16)) > 200
    beginnings = encode_beginnings(base, probe_set(LONG, 3), 16)
    result = evaluate(base, LONG, plan, max_length=16)
    assert result.loss == pytest.approx(mean_loss(base, beginnings))
    assert result.scores()["loss"].count == 3


def test_validation_loss_counts_one_text_per_example(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    held_out = tuple(Example("", f"{number:02}" + "ab" * 100) for number in range(MIN_VALIDATION))
    silo = Silo(base, SiloData(LONG, held_out, LONG), None)
    beginnings = encode_beginnings(base, probe_set(held_out, MIN_VALIDATION), 16)
    loss = Examiner(silo, ScoresPlan(examples=1), 16).validation()
    assert loss is not None
    assert loss.loss == pytest.approx(mean_loss(base, beginnings))


def test_scored_texts_are_taken_from_examples_in_turn(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    pieces = [encode_for(base, [example], 16) for example in LONG]
    assert encode_some(base, LONG, 5, 16) == tuple(pieces[i][n] for n in (0, 1) for i in range(3))[:5]
    assert len(encode_some(base, LONG[:1], 500, 16)) == len(pieces[0])


def test_sketch_reads_the_beginning_of_a_text(tiny: Callable[..., BaseModel]) -> None:
    base, plan = tiny(), SignaturePlan(probe_examples=1)
    for long, beginning in zip(LONG, SAME_BEGINNINGS, strict=True):
        assert sketch_of(base, [long], plan).to_bytes() == sketch_of(base, [beginning], plan).to_bytes()
