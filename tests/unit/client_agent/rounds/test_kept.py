"""Kept weights of a client: the better of served and trained, and the final weights."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np
import pytest

from client_agent.adapters.base import Adapter, State
from client_agent.adapters.inject import inject
from client_agent.adapters.ranks import rank_of
from client_agent.daemon import run
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.rounds.checkpoints import adapter_of_round
from client_agent.rounds.examine import Exam, Examiner
from client_agent.rounds.final_exchange import send_final_scores
from client_agent.rounds.standalone import train_alone
from client_agent.rounds.train import better_of, zeros_like
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.final_scores import FinalScores, read_final_scores
from client_agent.storage.rate_store import RateStore
from client_agent.storage.round_folder import FINAL_SCORES, FINAL_SCORES_SENT, SCORES_SENT, TRAINED
from client_agent.training.data import SiloData
from client_agent.training.silo import Silo
from schemas.messages.federations import AdapterPlan, ScoresPlan, TrainingPlan
from schemas.messages.scores import LOSS, Score
from tests.scene.agents import QUICK, Enrolled, alone_plan, limited_sleep
from tests.scene.coordinator import Served
from tests.scene.local_training import train_one_round
from tests.scene.plans import federation_plan

ADAPTER = AdapterPlan(kind="lora", rank=4, roles=["v", "down"])
PLAN = TrainingPlan(steps=2, batch_size=4, max_length=64, learning_rate=0.01)
SCORES = ScoresPlan(examples=8, new_tokens=0)


def silo_of(base: BaseModel, validation: int) -> Silo:
    rows = tuple(Example(f"rev {i}=", f"{i}"[::-1]) for i in range(100, 100 + 24 + validation))
    return Silo(base, SiloData(rows[:8], rows[24:], rows[8:24]), None)


def train_round(
    silo: Silo, rate: float, *, federated: bool, trained_before: bool, is_latecomer: bool = False
) -> TrainingResult:
    """Train one round from zero, from an earlier round, or, for a latecomer, from other clients' weights."""
    with inject(silo.base, ADAPTER, {}, gated=False, seed=0) as adapter:
        start = zeros_like(adapter)
        before = None
        if trained_before:
            before = train_round_in(silo, adapter, start, 0.01, federated=federated)
            start = before.adapter
        earlier = None if is_latecomer else before
        return train_round_in(silo, adapter, start, rate, federated=federated, earlier=earlier)


def train_round_in(
    silo: Silo,
    adapter: Adapter,
    start: State,
    rate: float,
    *,
    federated: bool,
    earlier: TrainingResult | None = None,
) -> TrainingResult:
    return train_one_round(
        silo,
        adapter,
        ADAPTER,
        PLAN,
        scores=SCORES,
        learning_rate=rate,
        round_number=1,
        total_rounds=1,
        start=start,
        earlier=earlier,
        is_federated=federated,
    )


def test_better_state_is_kept_with_enough_validation_examples(tiny: Callable[..., BaseModel]) -> None:
    silo = silo_of(tiny(), 16)
    trained = train_round(silo, 0.01, federated=True, trained_before=False)
    assert trained.validation["trained"] < trained.validation["served"]
    assert trained.scores.kept == "trained"
    silo.data = replace(silo.data, train=tuple(Example(e.prompt, "zzzz") for e in silo.data.train))
    worse = train_round(silo, 0.1, federated=False, trained_before=False)
    assert worse.validation["trained"] > worse.validation["served"]
    assert worse.scores.kept == "served"


def test_few_validation_examples_keep_trained_except_for_latecomers(tiny: Callable[..., BaseModel]) -> None:
    silo = silo_of(tiny(), 15)
    trained = train_round(silo, 0.01, federated=True, trained_before=True)
    assert (trained.validation, trained.scores.kept) == ({}, "trained")
    served = train_round(silo, 0.01, federated=True, trained_before=True, is_latecomer=True)
    assert served.scores.kept == "served"
    assert train_round(silo, 0.01, federated=False, trained_before=True).scores.kept == "trained"
    # Nobody has learnt what is served before the first round.
    assert train_round(silo, 0.01, federated=True, trained_before=False).scores.kept == "trained"


def test_equal_losses_keep_served_weights() -> None:
    served, trained = Exam("a", {}, 1.0), Exam("b", {}, 1.0)
    assert better_of(served, trained, fallback="trained") == "served"


def test_unchanged_adapter_is_not_scored_again(tiny: Callable[..., BaseModel], tmp_path: Path) -> None:
    plan = federation_plan(rounds={"total": 3}, training=PLAN, adapter=ADAPTER, scores=SCORES)
    silo = silo_of(tiny(), 16)
    rounds = list(train_alone(silo, plan, None, lambda: False, RateStore(tmp_path), tmp_path))
    for before, after in pairwise(rounds):
        assert after.scores.served == before.scores.trained
        assert after.validation["served"] == before.validation["trained"]
        assert all(np.array_equal(after.start[name], before.adapter[name]) for name in before.adapter)
    with inject(silo.base, ADAPTER, {}, gated=False, seed=0) as adapter:
        adapter.load(rounds[-1].adapter)
        examiner = Examiner(silo, SCORES, PLAN.max_length)
        once = examiner.examine(adapter)
        assert once.fingerprint == rounds[-1].fingerprints["trained"]
        assert examiner.examine(adapter, [once]) is once
        assert examiner.examine(adapter, [Exam("of another model", {}, None)]) == once
        assert Examiner(silo, SCORES, 32).examine(adapter).fingerprint != once.fingerprint
        scored = [replace(example, metrics=("f1",)) for example in silo.data.test]
        rescored = replace(silo, data=replace(silo.data, test=tuple(scored)))
        assert Examiner(rescored, SCORES, PLAN.max_length).examine(adapter, [once]) is not once
        adapter.load(rounds[0].adapter)
        assert examiner.examine(adapter, [once]) is not once
    read = TrainingResult.from_bytes(rounds[-1].to_bytes())
    assert (read.learning_rate, read.validation) == (0.01, rounds[-1].validation)


def test_final_weights_are_scored_and_sent_once(served: Served, started: Enrolled) -> None:
    participant = started(**alone_plan())
    run(participant, limited_sleep(500))
    home = participant.workspace.home
    final = read_final_scores(home)
    shown = served.rounds(participant.session.federation_id)[-1]["clients"][0]["scores"]
    assert final is not None
    assert shown["final"] == {name: score.model_dump() for name, score in final.scores.items()}
    # A client alone is served what it trained, in fewer bits: a hundredth of a loss of 4 is rounding.
    assert final.scores[LOSS].value == pytest.approx(shown["trained"]["loss"]["value"], abs=0.05)
    assert shown["mixing"]["value"] == pytest.approx(0, abs=0.05)
    times = [(home / name).stat().st_mtime_ns for name in (FINAL_SCORES, FINAL_SCORES_SENT)]
    run(participant, limited_sleep(500))
    assert [(home / name).stat().st_mtime_ns for name in (FINAL_SCORES, FINAL_SCORES_SENT)] == times


@pytest.mark.parametrize(
    ("final", "earlier", "is_kept"),
    [(0.5, 0.4, False), (0.4, 0.4, True), (0.3, 0.4, True), (None, 0.4, True), (0.5, None, True)],
)
def test_final_weights_are_kept_unless_worse(
    final: float | None, earlier: float | None, is_kept: bool
) -> None:
    loss = {LOSS: Score(value=1.0, count=1)}
    scores = FinalScores(scores=loss, validation_loss=final, earlier_loss=earlier)
    assert scores.are_kept == is_kept
    assert scores.choice.startswith(
        "the final weights are kept" if is_kept else "the model of the last round is kept"
    )


def test_worse_final_weights_keep_last_rounds_model(started: Enrolled) -> None:
    participant = started(**alone_plan())
    run(participant, limited_sleep(500))
    home, silo = participant.workspace.home, participant.trainer.silo
    final = read_final_scores(home)
    assert final is not None
    worse = final.model_copy(update={"validation_loss": 2.0, "earlier_loss": 1.0})
    last = TrainingResult.read(next(participant.workspace.rounds.newest_first()).path / TRAINED)
    for scores, variant in ((worse, last.scores.kept), (final, "final")):
        (home / FINAL_SCORES).write_text(scores.model_dump_json())
        with adapter_of_round(silo, home, None, "kept") as placed:
            exported = placed.adapter.state()
        with adapter_of_round(silo, home, None, variant) as placed:
            assert all(
                np.array_equal(exported[name], values) for name, values in placed.adapter.state().items()
            )


def test_refused_final_scores_do_not_fail_the_agent(
    started: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(httpx.HTTPTransport):
        """A proxy that refuses scores of final weights."""

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/scores") and b'"final":{' in request.read():
                return httpx.Response(403, json={"title": "no"}, request=request)
            return super().handle_request(request)

    participant = started(Refusing(), **alone_plan(rounds={"total": 1, "min_clients": 1}))
    with caplog.at_level(logging.WARNING):
        run(participant, limited_sleep(500))
    assert "scores of the final weights not sent" in caplog.text
    assert (participant.workspace.home / FINAL_SCORES).is_file()
    assert not (participant.workspace.home / FINAL_SCORES_SENT).exists()


def test_final_scores_need_those_of_the_last_round(
    started: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    participant = started(**alone_plan())
    run(participant, limited_sleep(500))
    home, newest = participant.workspace.home, next(participant.workspace.rounds.newest_first())
    final = read_final_scores(home)
    assert final is not None
    (home / FINAL_SCORES_SENT).unlink()
    (newest.path / SCORES_SENT).unlink()
    with caplog.at_level(logging.INFO):
        send_final_scores(participant, final)
    assert "`final` belongs to the last published round, 2" in caplog.text
    assert not (home / FINAL_SCORES_SENT).exists()


@pytest.mark.slow
def test_learning_rate_is_searched_before_first_round_only(started: Enrolled) -> None:
    participant = started(**alone_plan(training=QUICK | {"learning_rate": "auto"}))
    run(participant, limited_sleep(500))
    search = participant.workspace.rates.newest()
    assert search is not None
    rates = [
        TrainingResult.read(f.path / TRAINED).learning_rate
        for f in participant.workspace.rounds.newest_first()
    ]
    assert set(rates) == {search.chosen}
    assert len(list(participant.workspace.rates.folder.iterdir())) == 1


@pytest.mark.slow
def test_pruned_client_does_not_search_its_rate_again(started: Enrolled) -> None:
    participant = started(
        **alone_plan(
            training=QUICK | {"learning_rate": "auto"},
            adapter={"kind": "lora", "rank": 4, "roles": ["v", "down"]},
            strategy={"name": "het_lora", "options": {"decay": 0.5, "pruning": 100.0}},
            rounds={"total": 3, "min_clients": 1},
        )
    )
    run(participant, limited_sleep(500))
    trained = [
        TrainingResult.read(folder.path / TRAINED) for folder in participant.workspace.rounds.newest_first()
    ]
    assert rank_of(trained[0].adapter) < 4
    assert len(list(participant.workspace.rates.folder.iterdir())) == 1
