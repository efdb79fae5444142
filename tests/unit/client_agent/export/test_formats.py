"""The formats of an export: vLLM's ranks, GGUF rows, folded shifts, merged weights, the Modelfile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from client_agent.adapters.base import LoraFactors
from client_agent.errors import ExportUnsupported, LayoutMismatch
from client_agent.export.chat_shape import chat_shape
from client_agent.export.fold_shift import fold_shifts, shifted
from client_agent.export.gguf_lora import read_gguf, write_gguf
from client_agent.export.merge import holds_shift, write_merged
from client_agent.export.modelfile import write_modelfile
from client_agent.export.vllm_rules import RANKS, require_served, served_rank
from client_agent.model.chat import Turn, set_template
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel, load_base_model
from tests.scene.models import logits_array
from tests.unit.client_agent.adapters.peft_adapters import IDS, random_adapter

GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}</turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>model\n{% endif %}"
)
LAST_TURN_ONLY = "{% for m in messages %}{{ loop.index }} {{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("rank", "expected"), [(1, 1), (2, 8), (8, 8), (33, 64), (41, 64), (257, 320), (512, 512)]
)
def test_vllm_rank_is_the_next_supported_one(rank: int, expected: int) -> None:
    assert served_rank(rank) == expected
    assert expected in RANKS


def test_unsupported_rank_or_architecture_of_vllm_is_refused(tiny: Callable[..., BaseModel]) -> None:
    with pytest.raises(ExportUnsupported, match="--for merged"):
        served_rank(513)
    with pytest.raises(ExportUnsupported, match="gpt2"):
        require_served(tiny("gpt2"))


@pytest.mark.parametrize(
    ("architecture", "plan"),
    [("llama", "lora"), ("gemma3_text", "lora"), ("phi3", "lora"), ("llama", "last lora")],
)
def test_gguf_adapter_is_read_back_unchanged(
    tiny: Callable[..., BaseModel], tmp_path: Path, architecture: str, plan: str
) -> None:
    base = tiny(architecture)
    with random_adapter(base, plan) as adapter:
        factors = adapter.as_lora()
    write_gguf(tmp_path / "adapter.gguf", factors, base, "tiny")
    back = read_gguf(tmp_path / "adapter.gguf", base)
    assert back.keys() == factors.keys()
    for path, lora in factors.items():
        np.testing.assert_allclose(back[path].B @ back[path].A, lora.B @ lora.A, atol=1e-6)


def test_architecture_unknown_to_llama_cpp_is_refused(tiny: Callable[..., BaseModel], tmp_path: Path) -> None:
    with pytest.raises(ExportUnsupported, match="gpt_neox"):
        write_gguf(tmp_path / "adapter.gguf", {}, tiny("gpt_neox"), "tiny")


def test_shift_is_folded_into_one_more_rank(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base = tiny()
    with random_adapter(base, "p and q") as adapter:
        factors = adapter.as_lora()
        folded = fold_shifts(base, factors, encode_for(base, examples, 64))
    assert shifted(factors)
    assert not shifted(folded)
    for path in shifted(factors):
        assert len(folded[path].A) == len(factors[path].A) + 1
        np.testing.assert_array_equal(folded[path].B[:, -1], factors[path].bias)


def test_merged_weights_give_the_logits_of_the_adapter(
    saved_model: Callable[..., str], tmp_path: Path
) -> None:
    source = saved_model("llama")
    base = load_base_model(source, device=torch.device("cpu"))
    with random_adapter(base, "p and q") as adapter:
        expected, factors = logits_array(base, IDS), adapter.as_lora()
    assert all(holds_shift(base, path) for path in factors)
    write_merged(tmp_path, source, factors, base)
    merged = load_base_model(str(tmp_path), device=torch.device("cpu"))
    np.testing.assert_allclose(logits_array(merged, IDS), expected, rtol=1e-5, atol=1e-5)


def test_gemma_refuses_a_shift(tiny: Callable[..., BaseModel]) -> None:
    base = tiny("gemma3_text")
    assert not holds_shift(base, base.parts.path(0, "q"))


def test_chat_template_is_translated_for_ollama(tiny: Callable[..., BaseModel], tmp_path: Path) -> None:
    base = tiny()
    set_template(base.tokenizer, "plain")
    write_modelfile(tmp_path, base, "./base.gguf", chat=True)
    text = (tmp_path / "Modelfile").read_text()
    assert "\nFROM ./base.gguf\nADAPTER ./adapter.gguf\n" in text
    assert '{{ if eq .Role "user" }}user: {{ .Content }}\n' in text
    assert text.count("{{ end }}") == 2
    assert 'PARAMETER stop "<eos>"' in text
    write_modelfile(tmp_path, base, "./base.gguf", chat=False)
    assert 'TEMPLATE """{{ .Prompt }}"""' in (tmp_path / "Modelfile").read_text()


def test_template_of_fixed_texts_is_recognised(tiny: Callable[..., BaseModel]) -> None:
    tokenizer = tiny().tokenizer
    tokenizer.chat_template = GEMMA
    shape = chat_shape(tokenizer)
    assert shape is not None
    assert set(shape.turns) == {"user", "assistant"}
    assert shape.render([Turn("user", "hi")]) == "<turn>user\nhi</turn>\n<turn>model\n"
    tokenizer.chat_template = LAST_TURN_ONLY
    assert chat_shape(tokenizer) is None


def test_padding_needs_a_module_without_bias(tiny: Callable[..., BaseModel], tmp_path: Path) -> None:
    ones = np.ones((2, 32), np.float32)
    factors = {"model.layers.0.self_attn.q_proj": LoraFactors(ones, ones.T, ones[0])}
    with pytest.raises(LayoutMismatch, match="bias"):
        write_gguf(tmp_path / "adapter.gguf", factors, tiny(), "tiny")
