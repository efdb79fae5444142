"""Tiny random models of the causal language models that the installed transformers has."""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

UNBUILT = {
    "blt": "it reads bytes through two further transformers, whose sizes depend on each other",
    "dots3_note": "its config has no tiny values; its text model is dots3_note_text",
    "gemma4_assistant": "it drafts tokens out of the cache of another model",
    "gemma4_unified_assistant": "it drafts tokens out of the cache of another model",
}
"""The architectures of which no tiny model is built, and why."""

MODEL_TYPES = tuple(name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in UNBUILT)
VOCABULARY = 128
LARGEST = 7_000_000
"""Parameters of a model that is still tiny."""

_HIDDEN, _LAYERS, _HEADS = 32, 2, 4
_SIZES: dict[str, object] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim"), _HIDDEN),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), _LAYERS),
    **dict.fromkeys(("encoder_layers", "num_mem_blocks"), _LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"), _HEADS),
    **dict.fromkeys(("encoder_attention_heads", "kv_heads", "linear_num_value_heads"), _HEADS),
    **dict.fromkeys(("num_key_value_heads", "linear_num_key_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "decoder_ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("ffn_hidden_size", "shared_intermediate_size", "d_ff", "mlp_dim"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "d_kv"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "kv_channels", "global_head_dim"), 8),
    **dict.fromkeys(("index_head_dim",), 16),
    **dict.fromkeys(("index_n_heads", "index_topk"), 4),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "rotary_dim_divisor"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"), 64),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(("hidden_size_per_layer_input", "rotary_dim", "image_size"), 8),
    **dict.fromkeys(("out_hidden_size", "audio_embed_dim", "mm_embed_dim", "output_proj_dims"), _HIDDEN),
    "depth": 1,
    "num_heads": _HEADS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Sizes by the names that configs have; those that a config lacks are ignored."""

_LINEAR_AND_FULL = {"layer_types": ["linear_attention", "full_attention"]}
_SLIDING_AND_FULL = ["sliding_attention", "full_attention"]
_QWEN4 = {
    **_LINEAR_AND_FULL,
    **{"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8},
    **{"indexer_budget": 4, "indexer_compress_ratio": 2},
}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_expand": 2}
_AWKWARD: dict[str, dict[str, object]] = {
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": _MAMBA,
    "granitemoehybrid": {**_MAMBA, "layer_types": ["mamba", "attention"]},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "qwen3_5_text": _LINEAR_AND_FULL,
    "qwen3_5_moe_text": _LINEAR_AND_FULL,
    "qwen3_next": _LINEAR_AND_FULL,
    "qwen4_exp_text": _QWEN4,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "dots1": {"n_shared_experts": 1},
    "kimi_linear": {"linear_head_dim": 8, "linear_num_heads": 4},
    "cohere_compass_text": {
        "layer_types": _SLIDING_AND_FULL,
        "rope_parameters": {name: {"rope_type": "default", "rope_theta": 1e4} for name in _SLIDING_AND_FULL},
    },
    "mllama": {"text_config": {"cross_attention_layers": [1]}},
    "qwen3_5": {"text_config": _LINEAR_AND_FULL},
    "qwen3_5_moe": {"text_config": _LINEAR_AND_FULL},
    "qwen4_exp": {"text_config": _QWEN4},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8]},
    "moshi": {"audio_vocab_size": 32},
    "dbrx": {"attn_config": {"rope_theta": 10_000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "zaya": {"num_experts_per_tok": 1},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "roc_bert": {"pronunciation_vocab_size": 128, "shape_vocab_size": 128},
    "zamba": {"layer_types": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4},
    "zamba2": {"layer_types": ["linear_attention", "hybrid"]},
}
"""What single architectures need beside these sizes; None leaves a size out."""


def tiny_model(model_type: str, **changes: object) -> PreTrainedModel:
    """Build a tiny random model of a `model_type`, in evaluation mode."""
    config = tiny_config(model_type, **changes)
    with torch.device("meta"):
        size = sum(p.numel() for p in _model_of(config).parameters())
    assert size < LARGEST, f"{model_type} has {size} parameters: add an awkward size"
    torch.manual_seed(0)
    return _model_of(config).eval()


def tiny_config(model_type: str, **changes: object) -> PreTrainedConfig:
    """Return the config of a tiny model; `changes` are those of the text model."""
    kind = cast(Any, CONFIG_MAPPING[model_type])
    settings = _merged(_merged(_sizes(kind), _AWKWARD.get(model_type, {})), changes)
    return cast(
        PreTrainedConfig, kind(**{name: value for name, value in settings.items() if value is not None})
    )


def _merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return settings with changes, those of parts merged too."""
    parts = {name for name in settings.keys() & changes.keys() if isinstance(settings[name], dict)}
    return {**settings, **changes, **{name: _merged(settings[name], changes[name]) for name in parts}}


def _sizes(kind: Any) -> dict[str, object]:
    """Return the sizes that a kind of config has, those of its parts included."""
    example = kind()
    names = {*kind.attribute_map, *example.to_dict()}
    parts: dict[str, object] = {}
    for name, declared in (kind.sub_configs or {}).items():
        part = type(getattr(example, name)) if declared is AutoConfig else declared
        if issubclass(part, PreTrainedConfig):
            parts[name] = {"model_type": part.model_type, **_sizes(part)}
    sizes = {name: size for name, size in _SIZES.items() if name in names}
    if "kv_lora_rank" in sizes:  # latent attention expands its keys to all heads
        sizes["num_key_value_heads"] = _HEADS
    return sizes | parts


def _model_of(config: PreTrainedConfig) -> PreTrainedModel:
    return cast(PreTrainedModel, cast(Any, AutoModelForCausalLM).from_config(config))
