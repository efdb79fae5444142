"""TRL's trainers of the example package, stopped and resumed, on a tiny model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.adapters.base import require_bare
from client_agent.errors import Stopped
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.training.trainer_task import TrainerFailed
from client_agent.training.trainers import OpenedTrainer
from tests.scene.agent_processes import EXAMPLES
from tests.unit.client_agent.training.test_trainers import silo_of, train_with_trainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed (requirements/dev.txt)"),
    pytest.mark.filterwarnings("default"),  # those of the library and its dependencies
]


def trl(monkeypatch: pytest.MonkeyPatch, name: str, **options: Any) -> OpenedTrainer:
    monkeypatch.syspath_prepend(str(EXAMPLES / "trl_trainer"))
    module = import_module(f"tessera_trl.{name}")
    parsed = module.Options(**options)
    return OpenedTrainer(f"trl_{name}", parsed, module.Trainer(parsed))


@pytest.mark.timeout(600)
def test_stopped_sft_resumes_to_the_same_weights(
    tiny: Callable[..., BaseModel],
    examples: Sequence[Example],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = tiny()
    silo = silo_of(base, examples, trl(monkeypatch, "sft"))
    settings = vars(base.model.config).copy(), base.tokenizer.pad_token
    whole = train_with_trainer(silo, tmp_path / "whole")
    requested, steps = count(), []
    with pytest.raises(Stopped):
        train_with_trainer(silo, tmp_path, stop=lambda: next(requested) >= 1, steps=steps)
    assert [number for number, _ in steps] == [1, 2]
    resumed = train_with_trainer(silo, tmp_path, steps=steps)
    assert [number for number, _ in steps] == [1, 2, 3]
    for name, values in whole.adapter.items():
        assert np.allclose(values, resumed.adapter[name], atol=1e-6)
    assert (vars(base.model.config), base.tokenizer.pad_token) == settings
    assert not any("forward" in vars(module) for module in base.model.modules())
    require_bare(base)


@pytest.mark.timeout(600)
def test_dpo_prefers_the_answer_and_needs_options(
    tiny: Callable[..., BaseModel], examples: Sequence[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, dpo = tiny(), trl(monkeypatch, "dpo", learning_rate=0.01)
    with pytest.raises(TrainerFailed, match=r"trainer 'trl_dpo' failed .*DPO needs examples with options"):
        train_with_trainer(silo_of(base, examples, dpo))
    pairs = [replace(e, options=(e.completion, "abc")) for e in examples]
    result = train_with_trainer(silo_of(base, pairs, dpo))
    assert max(np.abs(values - result.start[name]).max() for name, values in result.adapter.items()) > 0.005
    require_bare(base)
