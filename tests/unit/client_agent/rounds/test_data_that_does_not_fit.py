"""Unusable examples are refused before the long work of a round."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from client_agent.errors import TextTooLong, TokenizerUnfit
from client_agent.model.examples import Example
from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import take_part
from client_agent.settings import read_settings
from client_agent.storage.round_folder import WEIGHTS
from client_agent.training.silo import Silo, open_silo
from tests.scene.agents import next_brief
from tests.scene.coordinator import Served
from tests.scene.silo_config import config


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_too_long_text_is_refused_before_download(
    served: Served,
    started: Callable[..., Participant],
    silo: Silo,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    long = Example("p", "x" * 2 * silo.base.positions)
    changes = {name: (*getattr(silo.data, name), long)}
    monkeypatch.setattr(silo, "data", replace(silo.data, **changes))
    plan = {"strategy": {"name": "fedavg"}, "adapter": {"kind": "lora", "rank": 2}}
    training = {"steps": 1, "max_length": 4 * silo.base.positions, "learning_rate": 0.01}
    participant = started(**plan, training=training, rounds={"total": 1, "min_clients": 1})
    brief = next_brief(participant)
    with pytest.raises(TextTooLong, match=r"training\.max_length"):
        take_part(participant, brief)
    assert not participant.workspace.rounds.open(1).has(WEIGHTS)


def test_chats_without_template_are_refused_when_silo_opens(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    records = [*({"prompt": f"p{i}", "completion": "c"} for i in range(100)), {"messages": chat}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(TokenizerUnfit, match="chat"):
        open_silo(read_settings(config(tmp_path, train=str(file), validation=str(file))))
