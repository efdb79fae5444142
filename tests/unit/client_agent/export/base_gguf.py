"""Write a tiny random model as a GGUF file, so that llama.cpp computes its logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from client_agent.model.loading import BaseModel

NAMES = {"llama": "llama", "mistral": "llama", "gemma3_text": "gemma3"}


def _without_vocabulary(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("no_vocab")


def write_base(
    file: Path,
    base: BaseModel,
    add_vocabulary: Callable[[gguf.GGUFWriter], None] = _without_vocabulary,
    *,
    without: str = "",
) -> None:
    """Write config and weights in float32, as llama.cpp expects them of the architecture.

    `without` is the name of a tensor that is left out.
    """
    config: Any = base.model.config
    name = NAMES.get(base.architecture, base.architecture)
    writer = gguf.GGUFWriter(file, name)
    writer.add_block_count(base.layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(float(rope.get("full_attention", rope).get("rope_theta")))
    writer.add_vocab_size(config.vocab_size)
    add_vocabulary(writer)
    if name in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if name == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    (number,) = (arch for arch, label in gguf.MODEL_ARCH_NAMES.items() if label == name)
    table = gguf.get_tensor_name_map(number, base.layers)
    for path, values in base.model.state_dict().items():
        stem, _, kind = path.rpartition(".")
        if path == without or (stem == base.parts.output_layer and config.tie_word_embeddings):
            continue
        weights = values.float().numpy()
        if name == "llama" and stem.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if stem.endswith("q_proj") else config.num_key_value_heads
            weights = rotated_pairs(weights, heads)
        if name.startswith("gemma") and "norm" in stem:
            weights = weights + 1
        writer.add_tensor(f"{table.get_name(stem)}.{kind}", np.ascontiguousarray(weights))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rotated_pairs(weights: np.ndarray, heads: int) -> np.ndarray:
    """Put the rows of both halves of a head beside each other, which llama.cpp rotates together."""
    ordered = [
        half[i]
        for head in np.split(weights, heads)
        for i in range(len(head) // 2)
        for half in np.split(head, 2)
    ]
    return np.stack(ordered)
