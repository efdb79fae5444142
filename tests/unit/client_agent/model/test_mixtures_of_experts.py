"""Mixtures of experts: attention and shared experts train; routed experts and router stay frozen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from client_agent.adapters.inject import inject_lora
from client_agent.adapters.peft_export import checkpoint_in_place, write_checkpoint
from client_agent.errors import ModelNotFound
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.training.memory import unquantised_expert_bytes
from schemas.messages.federations import ALL_ROLES
from tests.scene.local_training import train_examples
from tests.scene.models import logits_of
from tests.scene.tiny_models import character_tokenizer
from tests.unit.client_agent.model.architecture_table import ADAPTER, EXAMPLES, IDS, TRAINING
from tests.unit.client_agent.model.tiny_configs import tiny_model

CPU = torch.device("cpu")
ATTENTION = ("q", "k", "v", "o")

pytestmark = pytest.mark.filterwarnings("ignore")  # of peft and transformers about each other


@pytest.fixture
def mixture(tmp_path: Path) -> Callable[..., tuple[BaseModel, Path]]:
    """Load a tiny mixture of experts from a folder, and return both."""

    def load(model_type: str) -> tuple[BaseModel, Path]:
        folder = tmp_path / model_type
        tiny_model(model_type).save_pretrained(folder)
        character_tokenizer().save_pretrained(folder)
        return load_base_model(str(folder), device=CPU), folder

    return load


@pytest.mark.parametrize(
    ("model_type", "roles"),
    [
        ("qwen3_moe", ATTENTION),
        ("gpt_oss", ATTENTION),
        ("qwen2_moe", ALL_ROLES),
    ],  # the last has a shared expert
)
def test_training_and_peft_leave_routed_experts_frozen(
    mixture: Callable[..., tuple[BaseModel, Path]], model_type: str, roles: tuple[str, ...]
) -> None:
    base, folder = mixture(model_type)
    assert base.roles == roles
    before = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    bare = logits_of(base, IDS, use_cache=False)
    with inject_lora(base, ADAPTER) as adapter:
        assert not any("experts." in path or "router" in path for path in adapter.as_lora())
        losses = train_examples(base, adapter, EXAMPLES, TRAINING).losses
        trained = logits_of(base, IDS, use_cache=False)
        write_checkpoint(folder / "export", adapter.as_lora(), base, str(folder))
    assert losses[-1] < losses[0]
    assert (trained - bare).norm() > 1e-3 * bare.norm()
    after = base.model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    with checkpoint_in_place(base, folder / "export"):
        torch.testing.assert_close(logits_of(base, IDS, use_cache=False), trained, rtol=0, atol=1e-5)


def test_frozen_experts_are_reported(mixture: Callable[..., tuple[BaseModel, Path]]) -> None:
    base, _ = mixture("qwen3_moe")
    frozen = "mixture of experts: in 2 of 2 layers the routed experts and their router stay frozen"
    assert base.parts.frozen.sentences() == [f"{frozen} beside q, k, v, o"]
    experts = [p for name, p in base.model.named_parameters() if ".experts." in name]
    assert unquantised_expert_bytes(base) == sum(p.nbytes for p in experts) > 0


def test_mxfp4_weights_are_refused_with_a_remedy(
    mixture: Callable[..., tuple[BaseModel, Path]],
) -> None:
    _, folder = mixture("gpt_oss")
    file = folder / "config.json"
    stored = {"quantization_config": {"quant_method": "mxfp4"}}
    file.write_text(json.dumps(json.loads(file.read_text()) | stored))
    with pytest.raises(ModelNotFound, match=r"stored quantised.*dequantize=True.*save the model"):
        load_base_model(str(folder), device=CPU)
