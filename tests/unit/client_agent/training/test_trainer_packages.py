"""Trainer packages are found by name, or refused with a remedy before training."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.errors import SettingsUnusable
from client_agent.rounds.plan import require_trainer_suits
from client_agent.rounds.strategy import load_strategy
from client_agent.settings import read_settings
from client_agent.training.trainer_task import TrainerTask
from client_agent.training.trainers import (
    LocalTrainer,
    OpenedTrainer,
    TrainerOptions,
    TrainerUnusable,
    open_trainer,
)
from schemas.maths.factors import State
from schemas.messages.federations import AdapterPlan
from tests.scene.agents import checked
from tests.scene.silo_config import config
from tests.unit.client_agent.training.installed import CONSTANT, install

LORA = AdapterPlan(kind="lora", rank=4)


class InPlace(LocalTrainer):
    def train(self, task: TrainerTask) -> State:
        return task.adapter.state()


class WithPeft(InPlace):
    needs_peft = True


def test_unknown_trainer_is_refused_listing_installed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, name="constant", module="constant_trainer", source=CONSTANT)
    with pytest.raises(
        TrainerUnusable, match=r"no trainer 'dpo' .*installed: .*constant.*; install its package"
    ):
        open_trainer("dpo", {})
    assert open_trainer(None, {}) is None


def test_broken_trainer_packages_and_options_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "a", monkeypatch, name="constant", module="constant_trainer", source=CONSTANT)
    with pytest.raises(TrainerUnusable, match="'constant' are not usable: adds: there is no such option"):
        open_trainer("constant", {"adds": 1})
    install(tmp_path / "b", monkeypatch, name="constant", module="other_trainer", source=CONSTANT)
    with pytest.raises(
        TrainerUnusable, match=r"(constant_trainer and other|other_trainer and const).*uninstall"
    ):
        open_trainer("constant", {})
    install(tmp_path / "c", monkeypatch, name="torn", module="torn_trainer", source="raise OSError('gone')")
    with pytest.raises(TrainerUnusable, match=r"torn_trainer cannot be imported \(OSError\('gone'\)\)"):
        open_trainer("torn", {})
    install(tmp_path / "d", monkeypatch, name="empty", module="empty_trainer", source="")
    with pytest.raises(TrainerUnusable, match="empty_trainer does not define Trainer"):
        open_trainer("empty", {})
    source = "class Trainer(LocalTrainer):\n    pass\n"
    install(tmp_path / "e", monkeypatch, name="abstract", module="abstract_trainer", source=source)
    with pytest.raises(TrainerUnusable, match="'abstract' cannot be made"):
        open_trainer("abstract", {})


def test_settings_name_a_trainer_and_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", monkeypatch, name="constant", module="constant_trainer", source=CONSTANT)
    file = config(tmp_path)
    file.write_text(f"{file.read_text()}trainer = 'constant'\n[trainer_options]\nadd = 2\n")
    assert checked(file)["trainer"].detail == "constant"
    file.write_text(file.read_text().replace("add = 2", "add = 'two'"))
    finding = checked(file)["trainer"]
    assert not finding.passed
    assert "trainer_options of trainer 'constant' are not usable: add" in finding.detail
    file.write_text(file.read_text().replace("trainer = 'constant'", ""))
    with pytest.raises(SettingsUnusable, match="trainer_options need `trainer`"):
        read_settings(file)


def test_trainer_refuses_methods_beyond_plain_steps() -> None:
    trainer = OpenedTrainer("mine", TrainerOptions(), InPlace())
    require_trainer_suits(trainer, LORA, ())
    require_trainer_suits(trainer, AdapterPlan(kind="pq"), load_strategy("fedex_lora").parts)
    refusals = {
        "het_lora": r"method prunes ranks .* which trainer 'mine' does not do",
        "fed_vemoe": "trains experts of a bank",
        "ditto": "trains two adapters",
        "fedprox": "pulls its steps to the served weights",
    }
    for name, refusal in refusals.items():
        with pytest.raises(TrainerUnusable, match=refusal):
            require_trainer_suits(trainer, LORA, load_strategy(name).parts)

    with_peft_only = OpenedTrainer("peft", TrainerOptions(), WithPeft())
    require_trainer_suits(with_peft_only, LORA, ())
    with pytest.raises(TrainerUnusable, match="has an adapter of kind pq"):
        require_trainer_suits(with_peft_only, AdapterPlan(kind="pq"), ())
    with pytest.raises(TrainerUnusable, match="sends a part of the adapter"):
        require_trainer_suits(with_peft_only, LORA, load_strategy("ffa_lora").parts)
