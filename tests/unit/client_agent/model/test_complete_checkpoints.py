"""Checkpoints whose files do not fit are refused, and loaded tensors are the hashed ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Llama4Config, Llama4ForConditionalGeneration

from client_agent.adapters.base import LoraFactors
from client_agent.errors import CheckpointIncomplete, ModelNotFound
from client_agent.export.merge import write_merged
from client_agent.model.complete import load_complete
from client_agent.model.gguf import model_folder
from client_agent.model.loading import base_model_slug, load_base_model
from client_agent.model.weight_files import stored_tensors, weight_files
from tests.scene.agent_processes import MODELS
from tests.scene.agents import checked
from tests.scene.silo_config import config
from tests.scene.tiny_models import save_model
from tests.unit.client_agent.export.base_gguf import write_base
from tests.unit.client_agent.model.tiny_configs import tiny_model

CPU = torch.device("cpu")
DOWN = "model.layers.1.mlp.down_proj.weight"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers about peft


def changed(folder: Path, change: Callable[[dict[str, Tensor]], object] = len, **settings: Any) -> str:
    """Copy the small example model, and change its tensors and its config.json."""
    shutil.copytree(MODELS["S"], folder)
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**written, **settings}))
    return str(folder)


def sharded(folder: Path) -> Path:
    shutil.copytree(MODELS["S"], folder)
    (folder / WEIGHTS).unlink()
    AutoModelForCausalLM.from_pretrained(MODELS["S"]).save_pretrained(folder, max_shard_size="40KB")
    assert len(weight_files(folder)) > 2
    return folder


def test_missing_tensor_is_refused_by_name(tmp_path: Path) -> None:
    folder = changed(tmp_path / "tiny", lambda tensors: tensors.pop(DOWN))
    with pytest.raises(CheckpointIncomplete, match=f"missing tensors: {DOWN}"):
        load_base_model(folder, device=CPU)
    shards = sharded(tmp_path / "shards")
    (file,) = (file for file in weight_files(shards) if DOWN in load_file(file))
    save_file({name: t for name, t in load_file(file).items() if name != DOWN}, file, {"format": "pt"})
    with pytest.raises(CheckpointIncomplete, match=f"missing tensors: {DOWN}"):
        load_base_model(str(shards), device=CPU)


def test_agent_check_names_missing_tensor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed(tmp_path / "tiny", lambda tensors: tensors.pop(DOWN))
    finding = checked(config(tmp_path, model=folder))["model"]
    assert not finding.passed
    assert DOWN in finding.detail
    assert "LOAD REPORT" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"num_hidden_layers": 3}, r"tensors that are in no layer: model\.layers\.3\..* and 5 more"),
        ({"num_hidden_layers": 5}, r"missing tensors: model\.layers\.4\..* and 5 more"),
        ({"attention_bias": True}, r"missing tensors: model\.layers\.0\.self_attn\.k_proj\.bias"),
        ({"vocab_size": 50}, r"another shape: lm_head\.weight \[48, 96\], not \[50, 96\]"),
    ],
)
def test_config_of_another_model_is_refused(tmp_path: Path, settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(CheckpointIncomplete, match=fault):
        load_base_model(changed(tmp_path / "tiny", **settings), device=CPU)


def test_unexpected_tensor_is_refused_unless_unused(tmp_path: Path) -> None:
    bias = "model.layers.0.self_attn.q_proj.bias"
    with pytest.raises(CheckpointIncomplete, match=f"in no layer: {bias}"):
        load_base_model(changed(tmp_path / "a", lambda x: x.update({bias: torch.ones(96)})), device=CPU)
    unused = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(12),
        "vision_tower.blocks.0.weight": torch.ones(2),
        "mtp.layers.0.mlp.down_proj.weight": torch.ones(2, 2),
    }
    load_base_model(changed(tmp_path / "b", lambda x: x.update(unused)), device=CPU)


def test_missing_expert_is_refused_by_name(tmp_path: Path) -> None:
    tiny_model("mixtral").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    save_file(
        {name: t for name, t in tensors.items() if "layers.0.block_sparse_moe.experts.1.w1" not in name},
        tmp_path / WEIGHTS,
        {"format": "pt"},
    )
    with pytest.raises(CheckpointIncomplete, match=r"combined: model\.layers\.0\.mlp\.experts"):
        load_complete(str(tmp_path))


def test_text_model_of_multimodal_checkpoint_loads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    text |= {"intermediate_size": 48, "intermediate_size_mlp": 48, "vocab_size": 64, "head_dim": 8}
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    vision |= dict.fromkeys(("vision_output_dim", "projector_input_dim", "projector_output_dim"), 16)
    both = Llama4Config(
        text_config={**text, "num_local_experts": 2, "pad_token_id": 0},
        vision_config={**vision, "image_size": 28, "patch_size": 14},
    )
    Llama4ForConditionalGeneration(both).save_pretrained(tmp_path)
    with caplog.at_level("INFO", "client_agent"):
        load_complete(str(tmp_path))
    assert "for images and sound are not used, such as multi_modal_projector" in caplog.text


def test_tied_tensor_need_not_be_stored(saved_model: Callable[..., str]) -> None:
    folder = saved_model(tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(Path(folder) / WEIGHTS)
    load_base_model(folder, device=CPU)


@pytest.mark.filterwarnings("ignore")  # of gguf about its use of numpy
def test_gguf_file_without_tensor_is_refused(tmp_path: Path) -> None:
    base = load_base_model(str(MODELS["S"]), device=CPU)
    letters = [chr(ord("A") + number) for number in range(base.vocabulary - 1)]

    def add_vocabulary(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([*letters, "AB"])
        writer.add_token_merges(["A B"])
        writer.add_eos_token_id(2)

    whole, part = tmp_path / "whole.gguf", tmp_path / "part.gguf"
    write_base(whole, base, add_vocabulary)
    write_base(part, base, add_vocabulary, without=DOWN)
    assert Path(model_folder(str(whole), tmp_path)).is_dir()
    with pytest.raises(CheckpointIncomplete, match=rf"part\.gguf: .*missing tensors: {DOWN}"):
        model_folder(str(part), tmp_path)
    assert [path.name for path in (tmp_path / "models").iterdir() if path.name.startswith("part")] == []
    shutil.copy(whole, tmp_path / "big-00001-of-00002.gguf")
    with pytest.raises(ModelNotFound, match="one part of a model in several files"):
        model_folder(str(tmp_path / "big-00001-of-00002.gguf"), tmp_path)


@pytest.mark.parametrize("in_shards", [False, True])
def test_loaded_tensors_equal_the_hashed_ones(tmp_path: Path, in_shards: bool) -> None:
    folder = sharded(tmp_path / "tiny") if in_shards else Path(changed(tmp_path / "tiny"))
    for name in ("pytorch_model.bin", "consolidated.safetensors", "model.fp16.safetensors"):
        different = {key: tensor + 1 for key, tensor in load_file(MODELS["S"] / WEIGHTS).items()}
        save_file(different, folder / name, {"format": "pt"})
    base = load_base_model(str(folder), device=CPU)
    assert base.slug == base_model_slug(str(MODELS["S"]))
    loaded = {name: tensor.half() for name, tensor in base.model.state_dict().items()}
    hashed = {header.split()[0]: b"".join(chunks) for header, chunks in stored_tensors(folder)}
    assert {name: tensor.numpy().tobytes() for name, tensor in loaded.items()} == hashed


def test_second_set_of_weights_is_refused(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "tiny")
    shutil.copy(MODELS["S"] / WEIGHTS, folder)
    with pytest.raises(ModelNotFound, match=r"two sets of weights.*remove model\.safetensors, or the index"):
        base_model_slug(str(folder))
    (folder / INDEX).write_text(json.dumps({"weight_map": {DOWN: WEIGHTS}}))
    assert base_model_slug(str(folder)) == base_model_slug(str(MODELS["S"]))


def test_index_names_files_of_its_folder_once(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "tiny")
    index = json.loads((folder / INDEX).read_text())
    first, second, *_ = weight_files(folder)
    shutil.copy(first, second)
    with pytest.raises(ModelNotFound, match=f"is in both {first.name} and {second.name}"):
        base_model_slug(str(folder))
    for outside in ("../elsewhere/model.safetensors", "/tmp/model.safetensors", "pytorch_model.bin"):
        index["weight_map"] = dict.fromkeys(index["weight_map"], outside)
        (folder / INDEX).write_text(json.dumps(index))
        with pytest.raises(ModelNotFound, match="not a safetensors file of this folder"):
            base_model_slug(str(folder))


def test_adapter_inside_model_folder_is_refused(tmp_path: Path) -> None:
    folder = Path(changed(tmp_path / "tiny"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(folder)
    with pytest.raises(ModelNotFound, match=r"adapter_config\.json is an adapter"):
        load_base_model(str(folder), device=CPU)


def test_config_that_names_other_weights_is_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path / "a", transformers_weights="other.safetensors")
    with pytest.raises(ModelNotFound, match=r"transformers_weights in config\.json names 'other\.safetens"):
        load_base_model(folder, device=CPU)
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    with pytest.raises(ModelNotFound, match="stored quantised"):
        load_base_model(changed(tmp_path / "b", text_config=quantised), device=CPU)
    (Path(changed(tmp_path / "c")) / "shard-00000-model-00001-of-00001.safetensors").touch()
    with pytest.raises(ModelNotFound, match="part of a distributed checkpoint"):
        load_base_model(str(tmp_path / "c"), device=CPU)


def test_rope_of_config_changes_the_slug(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    assert base_model_slug(changed(tmp_path / "a", rope_parameters=rope)) != base_model_slug(str(MODELS["S"]))


def test_merged_weights_may_add_biases_only(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "tiny")
    base = load_base_model(folder, device=CPU)
    path = next(iter(base.parts.roles[0].values())).path
    d_out, d_in = base.shapes["q"]
    a, b, bias = torch.ones(1, d_in).numpy(), torch.zeros(d_out, 1).numpy(), torch.ones(d_out).numpy()
    write_merged(tmp_path / "merged", folder, {path: LoraFactors(a, b, bias=bias)}, base)
    load_base_model(str(tmp_path / "merged"), device=CPU)
    tensors = load_file(Path(folder) / WEIGHTS)
    tensors.pop(DOWN)
    save_file(tensors, Path(folder) / WEIGHTS, {"format": "pt"})
    with pytest.raises(CheckpointIncomplete, match=DOWN):
        write_merged(tmp_path / "again", folder, {path: LoraFactors(a, b, bias=bias)}, base)
