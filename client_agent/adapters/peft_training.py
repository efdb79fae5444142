"""Hand an ordinary LoRA to a trainer as a trainable PEFT checkpoint, and read back what it has written.

A and B are those of Tessera, and lora_alpha / r is the plan's factor, so that a learning rate means the same.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from client_agent.adapters.base import Adapter, LoraFactors, require_fit, set_aside
from client_agent.adapters.lora import LoraAdapter
from client_agent.adapters.peft_export import peft_model, write_checkpoint
from client_agent.adapters.peft_folder import CONFIG, PREFIX, read_adapter_folder
from client_agent.errors import AdapterUnreadable, LayoutMismatch
from client_agent.model.loading import BaseModel
from client_agent.storage.files import write_durably
from schemas.messages.federations import AdapterPlan

_FACTORS = (("A", "lora_A"), ("B", "lora_B"))
_PATTERNS = ("rank_pattern", "alpha_pattern")


def write_start(folder: Path, base: BaseModel, adapter: Adapter, plan: AdapterPlan) -> None:
    """Write the adapter in place as a PEFT checkpoint that can be trained.

    Raises:
        LayoutMismatch: it is not an ordinary LoRA with one A and one B per linear layer.
    """
    lora, state = _ordinary(adapter), adapter.state()
    factors = {path: LoraFactors(state[f"{n}.A"], state[f"{n}.B"], None) for n, path in lora.paths().items()}
    with set_aside(base):
        write_checkpoint(folder, factors, base, str(base.model.config.name_or_path))
    config = json.loads((folder / CONFIG).read_bytes())
    config |= {
        # So that A and B are Tessera's own, and a learning rate means the same.
        "lora_alpha": plan.factor * plan.rank,
        "lora_dropout": plan.dropout,
        "inference_mode": False,
    }
    write_durably(folder / CONFIG, f"{json.dumps(config, indent=2, sort_keys=True)}\n".encode())


def read_result(folder: Path, adapter: Adapter, plan: AdapterPlan) -> dict[str, NDArray[np.float32]]:
    """Read a PEFT checkpoint as the state of the adapter in place, float32.

    B is scaled if the checkpoint has another lora_alpha.

    Raises:
        AdapterUnreadable: a file is missing or damaged, or the checkpoint is no plain LoRA.
        LayoutMismatch: it has other modules or another rank than the adapter.
    """
    paths = _ordinary(adapter).paths()
    stored = read_adapter_folder(folder)
    config = stored.config
    mixed = [pattern for pattern in _PATTERNS if config.get(pattern)]
    if mixed:
        raise AdapterUnreadable(f"{folder / CONFIG} has {mixed[0]}, which is not sent; train a plain LoRA")
    scaling = config["lora_alpha"] / (sqrt(config["r"]) if config.get("use_rslora") else config["r"])
    names = {
        f"{PREFIX}.{path}.{factor}.weight": f"{name}.{part}"
        for name, path in paths.items()
        for part, factor in _FACTORS
    }
    state = {names.get(key, key): np.array(values.float().numpy()) for key, values in stored.tensors.items()}
    require_fit(adapter.layout, state)
    return {
        # A trainer may have written another scale: the product is what counts.
        name: values * np.float32(scaling / plan.factor) if name.endswith(".B") else values
        for name, values in state.items()
    }


@contextmanager
def trainable_peft_model(base: BaseModel, folder: Path) -> Iterator[nn.Module]:
    """Yield peft's model of a checkpoint around the bare base model; on exit the adapter is back in place.

    Libraries that train replace `forward` of modules, and change the configuration: both are restored.

    Raises:
        AdapterUnreadable: see `peft_model`.
    """
    model = cast(Any, base.model)
    # Libraries replace `forward` of single modules, for mixed precision for example.
    forwards = {module: vars(module).get("forward") for module in model.modules()}
    configs = {name: copy.deepcopy(getattr(model, name)) for name in ("config", "generation_config")}
    try:
        with set_aside(base), peft_model(base, folder, trainable=True) as wrapped:
            yield wrapped
    finally:
        for module, forward in forwards.items():
            if forward is not None:
                module.forward = forward
            elif "forward" in vars(module):
                del module.forward
        for name, config in configs.items():
            vars(getattr(model, name)).update(vars(config))


def _ordinary(adapter: Adapter) -> LoraAdapter:
    if not isinstance(adapter, LoraAdapter):
        raise LayoutMismatch("only an ordinary LoRA that is sent whole has a form in peft")
    return adapter
