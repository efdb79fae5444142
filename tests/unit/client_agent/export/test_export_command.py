"""`tessera agent export --for ...`: public peft and transformers load a federation's adapter.

The base deltas of flora and fedex_lora are in what is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_agent.adapters.peft_export import write_checkpoint
from client_agent.export.gguf_lora import FILE, read_gguf
from client_agent.rounds.checkpoints import adapter_of_round
from client_agent.rounds.final_weights import finish
from client_agent.rounds.participant import Participant
from client_agent.storage.base_delta import newest_base_delta
from client_agent.training.silo import Silo
from schemas.messages.rounds import FinishedBrief
from tests.scene.agent_commands import tessera
from tests.scene.agent_pair import Pair
from tests.scene.agent_processes import MODELS
from tests.scene.agents import limited_sleep
from tests.scene.coordinator import Served
from tests.scene.models import logits_array
from tests.scene.silo_config import config

IDS = torch.arange(10, 30)[None]  # (1, t)
PLAN: dict[str, Any] = {
    "adapter": {"kind": "lora", "rank": 2, "scale": 4.0, "roles": ["q", "v", "down"]},
    "training": {"steps": 2, "max_length": 64, "learning_rate": 0.01},
    "wire": {"recipe": "dense"},
    "rounds": {"total": 2, "min_clients": 2},
}


@pytest.fixture
def finished(served: Served, silo: Silo, tmp_path: Path) -> Iterator[Callable[[str], Participant]]:
    """Train two rounds under a strategy; one of the two clients has its final weights."""
    with ExitStack() as stack:

        def train(strategy: str) -> Participant:
            two = Pair(served, silo, tmp_path, stack, **PLAN, strategy={"name": strategy})
            for _ in range(2):
                two.run_round(*two.members)
            client, nap = two.members["aster"], limited_sleep(500)
            while not isinstance(brief := client.session.api.current_round(two.federation_id), FinishedBrief):
                nap(0)
            finish(client, brief)
            return client

        yield train


def public_model(source: object) -> nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(source), dtype=torch.float32).eval()


def public_peft(folder: Path) -> nn.Module:
    from peft import PeftModel

    return PeftModel.from_pretrained(public_model(MODELS["S"]), str(folder)).eval()


def from_gguf(folder: Path, silo: Silo) -> nn.Module:
    """Turn a GGUF adapter into a PEFT checkpoint, which peft loads; llama.cpp has tests of its own."""
    factors = read_gguf(folder / FILE, silo.base)
    write_checkpoint(folder / "peft", factors, silo.base, str(MODELS["S"]))
    return public_peft(folder / "peft")


# peft 0.21 reads the old name of transformers 5.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("strategy", ["fedmosaic", "flora", "fedex_lora"])
def test_exports_of_all_forms_give_the_final_logits(
    finished: Callable[[str], Participant], silo: Silo, tmp_path: Path, strategy: str
) -> None:
    client = finished(strategy)
    base_delta = newest_base_delta(client.workspace.rounds, before=3).added
    assert bool(base_delta) == (strategy != "fedmosaic")
    bare = logits_array(public_model(MODELS["S"]), IDS)
    with adapter_of_round(silo, client.workspace.home, None, "kept"):
        expected = logits_array(silo.base.model, IDS)
    assert np.abs(expected - bare).max() > 0.01
    load: dict[str, Callable[[Path], nn.Module]] = {
        "peft": public_peft,
        "vllm": public_peft,
        "gguf": lambda folder: from_gguf(folder, silo),
        "merged": public_model,
    }
    settings, environment = config(tmp_path), {"TESSERA_AGENT_FOLDER": str(client.workspace.folder)}
    for form, loaded in load.items():
        out = tmp_path / form
        done = tessera("export", "--for", form, "--config", settings, "--out", out, env=environment)
        assert done.exit_code == 0, done.output
        assert "scored on float32 weights" in done.output
        assert (out / "README.md").is_file()
        # Merged weights are rounded to the precision of the base model's files, float16.
        error = 0.01 if form == "merged" else 1e-4
        np.testing.assert_allclose(
            logits_array(loaded(out), IDS), expected, rtol=1e-4, atol=error, err_msg=form
        )
