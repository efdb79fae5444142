"""Exports and answers of a silo use the model that was scored, of a round or trained alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.adapters.peft_export import checkpoint_in_place
from client_agent.alignment.fit_packs import random_pack
from client_agent.alignment.pack import Pack
from client_agent.daemon import run
from client_agent.export.job import LARGEST_DIFFERENCE
from client_agent.rounds.training_result import TrainingResult
from client_agent.settings import read_settings
from client_agent.storage.final_scores import read_final_scores
from client_agent.training.evaluate import evaluate
from client_agent.training.silo import Silo, open_silo
from schemas.maths.adapter import SIGNATURE
from schemas.messages.federations import AdapterPlan, AlignmentPlan
from schemas.messages.scores import LOSS, ScoreSet
from schemas.wire.envelope import unpack
from schemas.wire.header import DENSE, Slot
from tests.scene.agent_commands import tessera
from tests.scene.agents import enrolled, limited_sleep
from tests.scene.coordinator import Served
from tests.scene.silo_config import config
from tests.scene.tiny_models import save_model

STEPS = {"steps": 3, "max_length": 64, "learning_rate": 0.01}
RANKS = {"rank": 8, "roles": ["v", "down"]}
LORA = RANKS | {"kind": "lora"}  # no output shift: its export is exact
ALONE = {
    "name": "alone",
    "strategy": {"name": "fedavg"},
    "rounds": {"total": 1},
    "adapter": RANKS | {"private_rank": 2, "same_architecture_rank": 2},
    "training": STEPS,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("silo")


@pytest.fixture(scope="module")
def silo(folder: Path) -> Silo:
    return open_silo(read_settings(config(folder)))


@dataclass(frozen=True)
class Rounds:
    """A silo after a finished federation."""

    config: Path
    home: Path
    served: Served

    def trained(self, number: int) -> TrainingResult:
        return TrainingResult.from_bytes(
            (self.home / f"rounds/{number:06d}/trained.safetensors").read_bytes()
        )


@pytest.fixture
def taken_part(silo: Silo, tmp_path: Path, served: Served) -> Callable[..., Rounds]:
    """Take part in the two rounds of a federation, alone."""

    def make(adapter: dict[str, Any], **options: Any) -> Rounds:
        federation_id = served.federation(
            strategy={"name": "fedmosaic", "options": options},
            rounds={"total": 2, "min_clients": 1},
            training=STEPS,
            adapter=adapter,
            wire={"recipe": "dense"},
        )
        file = config(tmp_path)
        folder = read_settings(file).folder
        with ExitStack() as stack:
            participant = enrolled(served, federation_id, silo, folder, stack)
            served.start_federation(federation_id)
            run(participant, limited_sleep(500))
        return Rounds(file, participant.workspace.home, served)

    return make


def score(silo: Silo, checkpoint: Path) -> ScoreSet:
    with checkpoint_in_place(silo.base, checkpoint):
        return evaluate(silo.base, silo.data.test, max_length=64).scores()


def assert_like(actual: ScoreSet, expected: ScoreSet) -> None:
    assert actual[LOSS].value == pytest.approx(expected[LOSS].value, abs=LARGEST_DIFFERENCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adapter", "options"),
    [
        (RANKS, {}),
        (RANKS | {"private_rank": 2}, {"mix": "gate"}),
        (RANKS | {"private_rank": 2, "same_architecture_rank": 3}, {}),
    ],
    ids=["replace", "gate and private", "shared and private"],
)
def test_round_exports_the_model_that_was_scored(
    silo: Silo,
    taken_part: Callable[..., Rounds],
    tmp_path: Path,
    adapter: dict[str, Any],
    options: dict[str, Any],
) -> None:
    rounds = taken_part(adapter, **options)
    for number, variant in product((1, 2), ("served", "trained")):
        out = tmp_path / f"out-{number}-{variant}"
        export = ("export", "--config", rounds.config, "--round", number, "--variant", variant, "--out", out)
        done = tessera(*export)
        assert done.exit_code == 0, done.output
        assert_like(score(silo, out), getattr(rounds.trained(number).scores, variant))
    assert not np.isclose(*(rounds.trained(n).scores.trained[LOSS].value for n in (1, 2)), atol=1e-3)


def test_private_ranks_persist_across_rounds_and_stay_local(taken_part: Callable[..., Rounds]) -> None:
    rounds = taken_part(RANKS | {"private_rank": 2, "same_architecture_rank": 3})
    first, second = rounds.trained(1), rounds.trained(2)
    for name in ("private.l0.v.B", "private.l3.down.B"):
        assert first.private[name].any()
        assert (
            0
            < np.abs(second.private[name] - first.private[name]).max()
            < 3 * np.abs(first.private[name]).max()
        )
    body = (rounds.home / "rounds/000002/update.body").read_bytes()
    travels = {name: Slot(values.shape, DENSE) for name, values in second.adapter.items()}
    sent_signature = {SIGNATURE: Slot((None,), DENSE)}
    with unpack(body, encoding="zstd", expected=travels | sent_signature, max_bytes=2**30) as sent:
        assert set(sent.names) == {*second.adapter, SIGNATURE}
    assert not any("private" in name for name in second.adapter)
    assert {"l0.v.A", "l3.down.B", "b0.v.P"} <= second.adapter.keys()


@pytest.mark.slow
def test_served_weights_are_exported_on_demand(
    silo: Silo, taken_part: Callable[..., Rounds], tmp_path: Path
) -> None:
    rounds = taken_part(RANKS)
    export = ("export", "--config", rounds.config)
    served = ("--round", 2, "--variant", "served", "--out", tmp_path / "served")
    assert tessera(*export, *served).exit_code == 0
    assert tessera(*export, "--out", tmp_path / "final").exit_code == 0
    # A client alone listens to itself: what it is served is what it trained the round before.
    assert_like(score(silo, tmp_path / "served"), rounds.trained(1).scores.trained)
    assert_like(score(silo, tmp_path / "final"), rounds.trained(2).scores.trained)
    final = read_final_scores(rounds.home)
    assert final is not None
    assert_like(score(silo, tmp_path / "final"), final.scores)


@pytest.mark.slow
def test_model_trained_alone_exports_and_generates_as_scored(
    silo: Silo, folder: Path, tmp_path: Path
) -> None:
    plan, file, out = tmp_path / "plan.json", tmp_path / "adapter.safetensors", tmp_path / "out"
    training = STEPS | {"steps": 40, "learning_rate": 0.02}
    plan.write_text(json.dumps(ALONE | {"adapter": LORA, "training": training}))
    silo_file = folder / "silo.toml"
    done = tessera("train", "--config", silo_file, "--plan", plan, "--out", file)
    assert done.exit_code == 0, done.output
    trained = TrainingResult.from_bytes(file.read_bytes()).scores
    export = ("export", "--config", silo_file, "--adapter", file, "--plan", plan, "--out", out)
    assert tessera(*export).exit_code == 0
    assert_like(score(silo, out), trained.kept_scores)
    examples = [*silo.data.train[:5], *silo.data.test[:5]]  # what it knows by now, and what it does not
    answers = {}
    for name, options in (("file", (file, "--plan", plan)), ("checkpoint", (out,))):
        answers[name] = [
            tessera(
                "generate", "--config", silo_file, "--prompt", example.prompt, "--adapter", *options
            ).stdout
            for example in examples
        ]
    assert answers["file"] == answers["checkpoint"]
    with checkpoint_in_place(silo.base, out):
        matching = [
            evaluate(silo.base, [example], max_length=64).teacher_forced_match == 1 for example in examples
        ]
    assert any(matching)
    assert not all(matching)
    assert matching == [
        answer == f"{example.completion}\n" for example, answer in zip(examples, answers["file"], strict=True)
    ]
    bare = tessera(
        "generate", "--config", silo_file, "--prompt", examples[0].prompt, "--base", "--max-new-tokens", 3
    )
    assert len(bare.stdout.rstrip("\n")) <= 3  # a token is a character here
    assert [bare.stdout] != answers["file"][:1]


def test_generate_answers_with_last_rounds_adapter(silo: Silo, taken_part: Callable[..., Rounds]) -> None:
    rounds = taken_part(RANKS)
    prompt = silo.data.test[0].prompt
    done = tessera("generate", "--config", rounds.config, "--prompt", prompt, "--max-new-tokens", 4)
    assert done.exit_code == 0, done.output
    assert 1 <= len(done.stdout.rstrip("\n")) <= 4
    for missing, error in (("7", "which has 1, 2"), ("x", "a number or latest")):
        done = tessera("generate", "--config", rounds.config, "--prompt", prompt, "--round", missing)
        assert done.exit_code == 1
        assert error in done.stderr


def test_damaged_round_file_is_reported(
    silo: Silo, taken_part: Callable[..., Rounds], tmp_path: Path
) -> None:
    rounds = taken_part(RANKS)
    folder = rounds.home / "rounds/000002"
    for file in ("trained.safetensors", "weights.safetensors"):
        if file == "weights.safetensors":  # a round that was not trained yet
            (folder / "trained.safetensors").unlink()
        body = (folder / file).read_bytes()
        (folder / file).write_bytes(body[: len(body) // 2])
        done = tessera(
            "export",
            "--config",
            rounds.config,
            "--round",
            2,
            "--variant",
            "served",
            "--out",
            tmp_path / "out",
        )
        assert done.exit_code == 1, done.output
        assert "damaged" in done.stderr
        (folder / file).write_bytes(body)


@pytest.mark.slow
def test_round_exports_only_with_its_own_base_model(
    taken_part: Callable[..., Rounds], tmp_path: Path
) -> None:
    taken_part(RANKS)
    out = tmp_path / "out"
    large = save_model(tmp_path / "other", vocab_size=512)
    for variant in ("kept", "served", "trained"):
        export = ("export", "--config", config(tmp_path, model=large), "--variant", variant)
        done = tessera(*export, "--out", out)
        assert (done.exit_code, out.exists()) == (1, False), done.output
        assert "was trained on" in done.stderr
    done = tessera("export", "--config", config(tmp_path), "--out", out)
    assert "scored on float32 weights" in done.stdout


def test_export_does_not_replace_a_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    for out in (tmp_path / "taken", tmp_path / "taken" / "below"):
        done = tessera("export", "--config", folder / "silo.toml", "--out", out)
        assert done.exit_code == 1, done.output
        assert "taken is not a folder" in done.stderr.replace("\n", " ")


def test_pack_of_another_model_is_refused(silo: Silo, folder: Path, tmp_path: Path) -> None:
    plan, pack = tmp_path / "plan.json", tmp_path / "pack.safetensors"
    plan.write_text(json.dumps(ALONE))
    foreign_pack = random_pack(silo.base, AdapterPlan(), AlignmentPlan(pivot=silo.base.slug), "test")
    manifest = foreign_pack.manifest.model_copy(update={"base_model": "llama-96x4-000000000000"})
    pack.write_bytes(Pack(foreign_pack.tensors, manifest).to_body())
    done = tessera("train", "--config", folder / "silo.toml", "--plan", plan, "--pack", pack)
    assert done.exit_code == 1, done.output
    assert "is of llama-96x4-000000000000" in done.stderr


def test_missing_files_are_reported_with_a_remedy(silo: Silo, folder: Path, tmp_path: Path) -> None:
    silo_file = folder / "silo.toml"
    prompt = ("--prompt", "CIPHER abcd=")
    plan, junk = tmp_path / "plan.json", tmp_path / "junk"
    plan.write_text(json.dumps(ALONE))
    junk.write_bytes(b"junk")
    for arguments, error in (
        (("generate", *prompt), "tessera agent enrol"),
        (("generate", *prompt, "--adapter", junk), "add --plan"),
        (("generate", *prompt, "--adapter", junk, "--plan", plan), "agent train --out"),
        (("generate", *prompt, "--adapter", tmp_path), "agent export"),
    ):
        done = tessera(arguments[0], "--config", silo_file, *arguments[1:])
        assert done.exit_code == 1, done.output
        assert error in done.stderr.replace("\n", " ")
