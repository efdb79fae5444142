"""llama.cpp computes with the GGUF adapter what Tessera's model computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from client_agent.adapters.base import LoraFactors
from client_agent.export.gguf_lora import write_gguf
from client_agent.model.loading import BaseModel
from tests.scene.models import logits_array
from tests.unit.client_agent.adapters.peft_adapters import IDS, random_adapter
from tests.unit.client_agent.export.base_gguf import write_base
from tests.unit.client_agent.export.llama_cpp import llama_cpp


@pytest.mark.system
@pytest.mark.parametrize(
    "architecture", ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"]
)
def test_llama_cpp_gives_the_same_logits(
    tiny: Callable[..., BaseModel], tmp_path: Path, architecture: str
) -> None:
    gemma = {"tie_word_embeddings": True, "query_pre_attn_scalar": 32} if "gemma" in architecture else {}
    base = tiny(architecture, head_dim=32, hidden_size=128, intermediate_size=96, **gemma)
    write_base(tmp_path / "base.gguf", base)
    bare = logits_array(base, IDS)[0]
    with random_adapter(base, "lora") as adapter:
        expected = logits_array(base, IDS)[0]
        factors: dict[str, LoraFactors] = adapter.as_lora()
    write_gguf(tmp_path / "adapter.gguf", factors, base, "tiny")
    assert np.abs(expected - bare).max() > 0.1
    with llama_cpp(tmp_path / "base.gguf") as model:
        np.testing.assert_allclose(model.logits(IDS[0]), bare, atol=2e-3)
    with llama_cpp(tmp_path / "base.gguf", tmp_path / "adapter.gguf") as model:
        np.testing.assert_allclose(model.logits(IDS[0]), expected, atol=2e-3)
