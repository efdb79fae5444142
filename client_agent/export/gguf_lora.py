"""Write an adapter as a GGUF file for llama.cpp and Ollama, and read one back.

llama.cpp names tensors in its own way, and stores the query and key weights of Llama models with the two
halves of every head interleaved, because it rotates neighbouring numbers where transformers rotates halves.
The rows of B are put in the same order. One rank, and an alpha equal to it, make its factor alpha / rank = 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from client_agent.adapters.base import LoraFactors
from client_agent.adapters.peft_export import layer_number, padded
from client_agent.errors import AdapterUnreadable, ExportUnsupported
from client_agent.model.architectures import linear_shape
from client_agent.model.loading import BaseModel

FILE = "adapter.gguf"


@dataclass(frozen=True, slots=True)
class _Names:
    """How llama.cpp calls an architecture, and whether it interleaves the rows of q and k."""

    architecture: str
    interleaved: bool = False


_ARCHITECTURES: Mapping[str, _Names] = MappingProxyType(
    {
        "llama": _Names("llama", interleaved=True),
        "mistral": _Names("llama", interleaved=True),
        "qwen2": _Names("qwen2"),
        "qwen3": _Names("qwen3"),
        "gemma": _Names("gemma"),
        "gemma2": _Names("gemma2"),
        "gemma3_text": _Names("gemma3"),
        "phi3": _Names("phi3"),
    }
)


def require_supported(base: BaseModel) -> None:
    """Check that a GGUF adapter can be written for a base model.

    Raises:
        ExportUnsupported: it cannot.
    """
    if base.architecture not in _ARCHITECTURES:
        raise ExportUnsupported(
            f"a GGUF adapter is written for {', '.join(sorted(_ARCHITECTURES))}, not for "
            f"{base.architecture}; export with `--for peft` or `--for merged`"
        )


def write_gguf(file: Path, factors: Mapping[str, LoraFactors], base: BaseModel, name: str) -> None:
    """Write the factors, which have no bias, as one GGUF adapter of float32 tensors.

    Raises:
        ExportUnsupported: the base model's architecture has no names in llama.cpp.
    """
    import gguf  # needed for this format only

    require_supported(base)
    rank = max(len(lora.A) for lora in factors.values())
    writer = cast(Any, gguf.GGUFWriter)(file, _ARCHITECTURES[base.architecture].architecture)
    writer.add_type("adapter")
    writer.add_name(name)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    names = _tensor_names(base, factors)
    for path, lora in factors.items():
        # The file has one alpha for all modules, so all need the same rank.
        same = padded(lora, rank)
        # Only B: the order of a layer's outputs changes, and its inputs stay.
        b = same.B[_row_order(base, path)]
        writer.add_tensor(f"{names[path]}.weight.lora_a", np.ascontiguousarray(same.A, np.float32))
        writer.add_tensor(f"{names[path]}.weight.lora_b", np.ascontiguousarray(b, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_gguf(file: Path, base: BaseModel) -> dict[str, LoraFactors]:
    """Read an adapter back, with rows in the order of transformers and the factor alpha / rank in B.

    Raises:
        AdapterUnreadable: the file has a tensor of no module of this base model.
    """
    import gguf  # needed for this format only

    reader = cast(Any, gguf.GGUFReader)(file)
    alpha = float(reader.get_field("adapter.lora.alpha").contents())
    tensors = {tensor.name: np.array(tensor.data, np.float32) for tensor in reader.tensors}
    paths = {name: path for path, name in _tensor_names(base, _linear_paths(base)).items()}
    factors = {}
    for stored, a in tensors.items():
        name, _, part = stored.rpartition(".weight.")
        if name not in paths:
            raise AdapterUnreadable(
                f"{file}: {stored} is of no module of {base.slug}; export the adapter again"
            )
        if part == "lora_a":
            b = tensors[f"{name}.weight.lora_b"]
            order = _row_order(base, paths[name])
            restored = np.empty_like(b)
            # The inverse of the permutation in `write_gguf`.
            restored[order] = b * np.float32(alpha / len(a))
            factors[paths[name]] = LoraFactors(a, restored, None)
    return factors


def _linear_paths(base: BaseModel) -> list[str]:
    return [linear.path for layer in base.parts.roles for linear in layer.values()]


def _tensor_names(base: BaseModel, paths: Mapping[str, LoraFactors] | list[str]) -> dict[str, str]:
    """Return the names of modules in llama.cpp, such as blk.3.attn_q, by path."""
    import gguf

    architecture = _ARCHITECTURES[base.architecture].architecture
    (number,) = (arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(number, base.layers)
    names = {path: table.get_name(path) for path in paths}
    missing = [path for path, name in names.items() if name is None]
    if missing:
        raise ExportUnsupported(
            f"llama.cpp has no name for {missing[0]}; export with `--for peft` or `--for merged`"
        )
    return {path: str(name) for path, name in names.items()}


def _row_order(base: BaseModel, path: str) -> NDArray[np.intp]:
    """Return for each output row of llama.cpp the row of transformers: (d_out,).

    With interleaved halves, row 2 i + j of a head is row j d/2 + i.
    """
    layer = base.parts.roles[layer_number(path)]
    role = next((role for role, linear in layer.items() if linear.path == path), None)
    d_out = linear_shape(base.model.get_submodule(path))[0]
    if role not in ("q", "k") or not _ARCHITECTURES[base.architecture].interleaved:
        return np.arange(d_out)
    config = cast(Any, base.model.config)
    heads = config.num_attention_heads if role == "q" else config.num_key_value_heads
    return np.arange(d_out).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
