"""P without Q: the adapter equals one with Q = 0, and its export has no bias."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.numpy
import torch

from client_agent.adapters.frames import random_frames
from client_agent.adapters.peft_export import checkpoint_in_place, write_checkpoint
from client_agent.adapters.peft_folder import CONFIG, TENSORS
from client_agent.adapters.provenance import origin_of, require_same
from client_agent.errors import LayoutMismatch, ProvenanceMismatch
from client_agent.model.loading import BaseModel, load_base_model
from schemas.messages.federations import AdapterPlan
from tests.scene.models import answer_logits_of, inject_random_pq
from tests.scene.tensors import random_tensors, zero_tensors

WITH_Q = AdapterPlan(rank=4, blocks=2, scale=1.5)
WITHOUT_Q = WITH_Q.model_copy(update={"bias": False})
BESIDE_LORA = {"same_architecture_rank": 2, "private_rank": 1}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "phi3"])  # phi3: several roles in one layer
def test_adapter_without_q_equals_zero_q(
    tiny: Callable[..., BaseModel], architecture: str, gated: bool
) -> None:
    base = tiny(architecture)
    logits = []
    with inject_random_pq(base, WITHOUT_Q, gated=gated) as adapter:
        state = random_tensors(adapter.layout)
        adapter.load(state)
        if gated:
            adapter.load_global({name: -2 * values for name, values in state.items()})
        merged = adapter.merged_state()
        assert merged.keys() == state.keys()
        assert all(name.endswith(".P") for name in state)
        assert all(lora.bias is None for lora in adapter.as_lora().values())
        logits.append(answer_logits_of(base))
    with inject_random_pq(base, WITH_Q) as adapter:
        zeros = zero_tensors(adapter.layout)
        adapter.load(zeros | merged)
        logits.append(answer_logits_of(base))
    torch.testing.assert_close(*logits)


def test_tensors_and_origin_with_q_are_refused(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    frames = random_frames(base, WITH_Q, 0)
    with inject_random_pq(base, WITH_Q) as adapter:
        state = adapter.state()
    with (
        inject_random_pq(base, WITHOUT_Q) as adapter,
        pytest.raises(LayoutMismatch, match=r"unexpected .*\.Q"),
    ):
        adapter.load(state)
    origins = [origin_of(base, plan, frames, gated=False, seed=0) for plan in (WITH_Q, WITHOUT_Q)]
    with pytest.raises(ProvenanceMismatch, match="bias True, not False"):
        require_same(*origins)
    before = origins[0].model_dump()
    del before["adapter"]["bias"]  # as an adapter from before this field was stored
    require_same(type(origins[0]).model_validate_json(json.dumps(before)), origins[0])


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, about how peft calls it
def test_export_has_no_bias_and_merges(saved_model: Callable[..., str], tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    source = saved_model("llama")
    base = load_base_model(source, device=torch.device("cpu"))
    ids = torch.tensor([[1, 5, 9, 14, 7, 22]])
    with inject_random_pq(base, WITHOUT_Q.model_copy(update=BESIDE_LORA)) as adapter, torch.no_grad():
        assert {name.rpartition(".")[2] for name in adapter.layout} == {"A", "B", "P"}
        adapter.load(random_tensors(adapter.layout))
        write_checkpoint(tmp_path, adapter.as_lora(), base, source)
        expected = base.model(input_ids=ids).logits  # type: ignore[operator]
    assert json.loads((tmp_path / CONFIG).read_bytes())["lora_bias"] is False
    assert not [name for name in safetensors.numpy.load_file(tmp_path / TENSORS) if "bias" in name]
    with checkpoint_in_place(base, tmp_path), torch.no_grad():
        torch.testing.assert_close(base.model(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-4)  # type: ignore[operator]
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(source), tmp_path)
    with torch.no_grad():
        merged = model.merge_and_unload()(input_ids=ids).logits  # type: ignore[operator]
    torch.testing.assert_close(merged, expected, rtol=1e-4, atol=1e-4)
