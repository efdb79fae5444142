"""Write and load an adapter as a standard PEFT LoRA checkpoint, which public peft can load.

All modules have one rank r, smaller ones with zeros, and lora_alpha = r: servers such as llama.cpp and vLLM
know one rank and one alpha. An output shift has no place here, because they know no bias in an adapter.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError
from torch import nn
from transformers.pytorch_utils import Conv1D

from client_agent.adapters.base import LoraFactors, replace_module, require_bare
from client_agent.adapters.peft_folder import (
    BASE_MODEL,
    CONFIG,
    PREFIX,
    TENSORS,
    light_peft,
    read_adapter_folder,
)
from client_agent.errors import AdapterUnreadable, LayoutMismatch
from client_agent.model.loading import BaseModel
from client_agent.storage.files import write_durably
from client_agent.storage.tensor_metadata import save_tensors


def write_checkpoint(
    folder: Path, factors: Mapping[str, LoraFactors], base: BaseModel, model_name: str
) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors` of factors without bias.

    The base model may carry the adapter. `model_name` is its name in the config, such as its hub id.
    Its slug is in the metadata of the tensors.
    """
    # Servers such as llama.cpp and vLLM know one rank and one alpha for all modules.
    rank = max(len(lora.A) for lora in factors.values())
    tensors = _tensors({path: padded(lora, rank) for path, lora in factors.items()})
    # The same bytes each time: a revision that is exported again must have the digests that servers know.
    write_durably(folder / TENSORS, save_tensors(tensors, metadata_for(base)))
    config = _config(factors, rank, cast(nn.Module, base.model), model_name)
    write_durably(folder / CONFIG, f"{json.dumps(config, indent=2, sort_keys=True)}\n".encode())


def metadata_for(base: BaseModel) -> dict[str, str]:
    """Return the metadata of a checkpoint's tensors: their format for peft, and the base model's slug."""
    return {"format": "pt", BASE_MODEL: base.slug}


def padded(lora: LoraFactors, rank: int) -> LoraFactors:
    """Return factors of a rank, with zeros in the ranks that `lora` lacks.

    Raises:
        LayoutMismatch: `lora` has a bias or a larger rank.
    """
    lacking = rank - len(lora.A)
    if lora.bias is not None or lacking < 0:
        raise LayoutMismatch(
            f"a module has rank {len(lora.A)}{' and a bias' if lora.bias is not None else ''}, and the "
            f"checkpoint has rank {rank} and no bias; fold the bias first, and choose the largest rank"
        )
    rows = np.pad(lora.A, ((0, lacking), (0, 0)))
    return LoraFactors(A=rows, B=np.pad(lora.B, ((0, 0), (0, lacking))), bias=None)


def precision_note(precision: str, *, was: str = "trained") -> str:
    """Return a sentence on the base-model precision under which the exported adapter keeps its score.

    `was`: what was done on weights in this precision. Served and final weights are a mixture of adapters
    from several silos, and are scored here.
    """
    if precision == "float32":
        return (
            f"{was} on float32 weights: public peft returns the same logits on float32 weights to 1e-5; on "
            "weights in fewer bits they differ, as the base model's logits do"
        )
    return (
        f"{was} on weights in {precision}: public peft returns the same logits, up to rounding in that "
        "precision, if it loads the base model in the same way; in another precision, float32 included, the "
        "model differs from the scored model: score it again before you use it"
    )


@contextmanager
def checkpoint_in_place(base: BaseModel, folder: Path) -> Iterator[None]:
    """Load a PEFT checkpoint around the base model with public peft; remove it on exit.

    Raises:
        AdapterInPlace: the base model carries an adapter already.
        AdapterUnreadable, ProvenanceMismatch: the folder holds no checkpoint of this base model.
    """
    with peft_model(base, folder):
        yield


@contextmanager
def peft_model(
    base: BaseModel, folder: Path, *, classes: Mapping[str, str] | None = None, trainable: bool = False
) -> Iterator[nn.Module]:
    """Load a PEFT checkpoint around the base model, and yield peft's model; remove it on exit.

    `trainable` factors require gradients, and their folder may be one that a trainer wrote, which does not
    name the base model. `classes` are the folders of an X-LoRA's classes by name, in place
    of those in its config.

    Raises:
        AdapterInPlace: the base model carries an adapter already.
        AdapterUnreadable, ProvenanceMismatch: the folder holds no checkpoint of this base model.
    """
    require_bare(base)
    stored = read_adapter_folder(folder, "LORA" if classes is None else "XLORA")
    parts = {name: read_adapter_folder(Path(part)) for name, part in (classes or {}).items()}
    for checked in (stored, *parts.values()):
        if not trainable or checked.base_model is not None:
            checked.require_base_model(base.slug)
    with _restore_modules(cast(nn.Module, base.model)):
        try:
            with light_peft(), warnings.catch_warnings():
                from peft import PeftModel, XLoraConfig  # slow to import

                warnings.simplefilter("ignore")  # about merging, and about how peft calls other libraries
                options: dict[str, object] = {"is_trainable": True} if trainable else {}
                if classes is not None:
                    config = cast(Any, XLoraConfig).from_pretrained(folder.resolve())
                    config.adapters = dict(classes)
                    options = {"config": config, "torch_device": str(base.device)}
                model = cast(Any, PeftModel).from_pretrained(base.model, folder.resolve(), **options)
        except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
            raise AdapterUnreadable(
                f"{folder} holds no PEFT checkpoint for {base.slug} ({error!r}); pass a folder that "
                "`tessera agent export` wrote for this base model"
            ) from error
        if classes is not None:
            stored.require_classifier(model)
        for name, checked in parts.items() if classes is not None else [("default", stored)]:
            # peft only warns of tensors that it does not know: the base model would answer in the adapter's
            # name.
            checked.require_loaded(cast(nn.Module, base.model), name)
        yield model


@contextmanager
def _restore_modules(model: nn.Module) -> Iterator[None]:
    """Restore the modules that peft replaces, also after a failure half-way."""
    modules = dict(model.named_modules())
    try:
        yield
    finally:
        for path, module in modules.items():
            # peft's own unload misses layers if it failed half-way.
            if path and model.get_submodule(path) is not module:
                replace_module(model, path, module)
        if hasattr(model, "peft_config"):
            del model.peft_config


def _config(
    factors: Mapping[str, LoraFactors], rank: int, model: nn.Module, model_name: str
) -> dict[str, object]:
    """Return peft's LoraConfig as a dict."""
    with light_peft():
        from peft import LoraConfig  # slow to import

    names, layers = _targets(model, factors)
    # Named as parameters instead, since peft would look for routed experts there.
    lost = [name for name in names if _is_lost(name, model)]
    weights = sorted(path for path in factors if any(f".{path}".endswith(f".{name}") for name in lost))
    if weights:  # whole paths then, so that nothing else is selected
        names, layers = sorted(factors.keys() - set(weights)), None
    config = LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=model_name,
        inference_mode=True,
        r=rank,
        lora_alpha=rank,
        layers_to_transform=layers,
        fan_in_fan_out=any(_is_transposed(model, path) for path in factors),
        target_parameters=[f"{path}.weight" for path in weights] or None,
    )
    return {**cast(Any, config).to_dict(), "target_modules": names}


def _is_lost(name: str, model: nn.Module) -> bool:
    """Whether peft mistakes a target module for the routed experts of an older transformers.

    peft then looks for parameters of experts in its place, even for a linear layer of a dense layer or of
    shared experts. Named as a target parameter, the module is found.
    """
    from peft import LoraConfig  # seconds to import
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    config = LoraConfig(target_modules=[name])
    try:
        convert_peft_config_for_transformers(config, model, None)
    except ValueError:  # a part of fused experts without the others
        return True
    return name not in cast(Any, config).target_modules


def _targets(model: nn.Module, paths: Collection[str]) -> tuple[list[str], list[int] | None]:
    """Return peft's target_modules and layers_to_transform: plain names of modules, as vLLM knows them.

    Where these select other modules too, the names are whole paths.
    """
    names = {path.rpartition(".")[2] for path in paths}
    layers = {layer_number(path) for path in paths}
    selected = {
        path
        for path, _ in model.named_modules()
        if path.rpartition(".")[2] in names and layer_number(path) in layers
    }
    # Plain names where they select just these modules: vLLM knows no paths.
    return (sorted(names), sorted(layers)) if selected == set(paths) else (sorted(paths), None)


def layer_number(path: str) -> int:
    """Return the number of the layer of a module's path; -1 outside the layers."""
    return next((int(part) for part in path.split(".") if part.isdecimal()), -1)


def below_layer(path: str) -> str:
    """Return a module's path below its layer, such as mlp.down_proj."""
    return path.partition(f".{layer_number(path)}.")[2]


def _tensors(factors: Mapping[str, LoraFactors]) -> dict[str, np.ndarray]:
    """Map A (r, d_in) and B (d_out, r) to peft's tensor names."""
    tensors: dict[str, np.ndarray] = {}
    for path, lora in factors.items():
        tensors[f"{PREFIX}.{path}.lora_A.weight"] = np.ascontiguousarray(lora.A)
        tensors[f"{PREFIX}.{path}.lora_B.weight"] = np.ascontiguousarray(lora.B)
    return tensors


def _is_transposed(model: nn.Module, path: str) -> bool:
    """Whether the innermost base layer at a path stores its weight as (d_in, d_out)."""
    module: object = model.get_submodule(path)
    while hasattr(module, "base_layer"):
        module = module.base_layer
    return isinstance(module, Conv1D)
