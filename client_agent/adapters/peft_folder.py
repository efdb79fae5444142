"""Read the folder of a PEFT checkpoint, and check that a model has loaded all of it and nothing else.

peft ignores keys and tensors that it does not know, at most with a warning. The model then answers as the
base model, without the adapter. So `read_adapter_folder` reads every folder that other software has written.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from client_agent.errors import AdapterUnreadable, ProvenanceMismatch

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model"
CLASSIFIER = "internal_xlora_classifier"
BASE_MODEL = "base_model"
"""The key of the base model's slug in the metadata of the tensors' file; peft warns of keys in its config."""

Kind = Literal["LORA", "XLORA"]

_APPLIED = frozenset(
    {
        "r",
        "lora_alpha",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "fan_in_fan_out",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "target_parameters",
    }
)
"""Keys that peft applies as they are written, and whose effect is compared after loading."""
_WITHOUT_EFFECT = frozenset(
    {
        "peft_type",
        "peft_version",
        "task_type",
        "auto_mapping",
        "base_model_name_or_path",
        "revision",
        "inference_mode",
        "lora_dropout",
        "init_lora_weights",
    }
)
"""Keys that change nothing in a loaded adapter: names, and what matters in training only."""
_PLAIN_STARTS = (True, False, "gaussian", None)  # other starts replace weights of the base model
_REMEDY = "Pass a folder that `tessera agent export` wrote for this base model"
_KERNELS = "bitsandbytes"


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """The content of a folder with a PEFT checkpoint.

    Attributes:
        tensors: by the name in the file.
        base_model: the slug of the base model that the adapter was trained on; None if the file lacks it.
    """

    path: Path
    kind: Kind
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    base_model: str | None

    def require_base_model(self, slug: str) -> None:
        """Check that the adapter was trained on a base model.

        Raises:
            AdapterUnreadable: the file does not name its base model.
            ProvenanceMismatch: it names another base model.
        """
        if self.base_model is None:
            raise AdapterUnreadable(
                f"{self.path / TENSORS} does not name the base model of its adapter, as folders of other "
                "programs; write the folder again with `tessera agent export`"
            )
        if self.base_model != slug:
            raise ProvenanceMismatch(
                f"the adapter in {self.path} was trained on {self.base_model}, and the model here is {slug}; "
                "set model to the base model that it was trained on"
            )

    def require_loaded(self, model: nn.Module, adapter: str) -> None:
        """Check that the modules in `model` are those of the folder, under peft's name of an adapter.

        Raises:
            AdapterUnreadable: a tensor is missing, unexpected, or has another shape or other values.
        """
        slots = _slots(model, adapter)
        self._require_equal(slots, "the model")
        paths = {name.removeprefix(f"{PREFIX}.").partition(".lora_")[0] for name in slots}
        for key in ("rank_pattern", "alpha_pattern"):
            for pattern in self.config.get(key) or {}:
                # The expression by which peft matches; a pattern that matches nothing is ignored there.
                if not any(re.match(rf"(.*\.)?({pattern})$", path) for path in paths):
                    raise AdapterUnreadable(
                        f"{self.path / CONFIG}: {key} names {pattern!r}, which matches no module of the "
                        f"adapter and would be ignored; correct it. {_REMEDY}"
                    )
        self._require_orientation(model, paths)

    def require_classifier(self, model: nn.Module) -> None:
        """Check that peft's X-LoRA has loaded the router of the folder.

        Raises:
            AdapterUnreadable: see `require_loaded`.
        """
        classifier = cast(nn.Module, cast(Any, model).base_model.internal_xlora_classifier)
        slots = {f"base_model.{CLASSIFIER}.{name}": value for name, value in classifier.state_dict().items()}
        self._require_equal(slots, "the router")

    def _require_equal(self, slots: Mapping[str, Tensor], place: str) -> None:
        file = self.path / TENSORS
        missing, unexpected = (
            sorted(slots.keys() - self.tensors.keys()),
            sorted(self.tensors.keys() - slots.keys()),
        )
        if missing or unexpected:
            parts = [f"missing {_listed(missing)}"] if missing else []
            parts += [f"without a place in the model: {_listed(unexpected)}"] if unexpected else []
            raise AdapterUnreadable(f"{file} does not fit the base model: {'; '.join(parts)}. {_REMEDY}")
        for name, value in slots.items():
            stored = self.tensors[name]
            if stored.shape != value.shape:
                raise AdapterUnreadable(
                    f"{file}: {name} has shape {list(stored.shape)}, and {place} has {list(value.shape)}. "
                    f"{_REMEDY}"
                )
            # Exactly equal, since loading only copies.
            if not torch.equal(stored.to(value.device, value.dtype), value):
                raise AdapterUnreadable(f"{file}: peft loaded other values than those of {name}. {_REMEDY}")

    def _require_orientation(self, model: nn.Module, paths: Iterable[str]) -> None:
        """Check fan_in_fan_out, which peft corrects for a layer that is not as it says, with a warning."""
        layers = [cast(Any, model.get_submodule(path)) for path in paths]
        stated = bool(self.config.get("fan_in_fan_out", False))
        if any(bool(getattr(layer, "fan_in_fan_out", stated)) != stated for layer in layers):
            raise AdapterUnreadable(
                f"{self.path / CONFIG}: fan_in_fan_out is {str(stated).lower()}, and the base model stores "
                f"its weights the other way. {_REMEDY}"
            )


def read_adapter_folder(folder: Path, kind: Kind = "LORA") -> AdapterFolder:
    """Read and check the folder of a PEFT checkpoint, before any model is loaded.

    Raises:
        AdapterUnreadable: a file is missing or damaged, a key of the config is not supported, or a tensor has
            a value that is not finite.
    """
    absent = [name for name in (CONFIG, TENSORS) if not (folder / name).is_file()]
    if absent:
        raise AdapterUnreadable(
            f"{folder} holds no PEFT checkpoint: {absent[0]} is missing; pass a folder that "
            "`tessera agent export` wrote"
        )
    config = _read_config(folder / CONFIG, kind)
    try:
        with safe_open(folder / TENSORS, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise AdapterUnreadable(f"{folder / TENSORS} is damaged ({error}). {_REMEDY}") from error
    for name, values in tensors.items():
        # Before a model is loaded, which takes minutes.
        if not values.is_floating_point() or not bool(torch.isfinite(values).all()):
            raise AdapterUnreadable(
                f"{folder / TENSORS}: {name} has values that are not finite numbers. {_REMEDY}"
            )
    return AdapterFolder(folder, kind, config, tensors, metadata.get(BASE_MODEL))


def _read_config(file: Path, kind: Kind) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise AdapterUnreadable(f"{file} cannot be read ({error}). {_REMEDY}") from error
    if not isinstance(config, dict):
        raise AdapterUnreadable(f"{file} is not a JSON object. {_REMEDY}")
    if config.get("peft_type") != kind:
        raise AdapterUnreadable(
            f"{file}: peft_type is {config.get('peft_type')!r}, and {kind} is loaded here. {_REMEDY}"
        )
    plain = _defaults(kind)
    for key, value in config.items():
        if not _is_supported(key, value, plain, kind):
            raise AdapterUnreadable(
                f"{file}: {key} = {json.dumps(value)} is not supported, and the adapter would not act as it "
                f"was trained. {_REMEDY}"
            )
    _require_finite_scale(file, config, kind)
    return config


def _is_supported(key: str, value: object, plain: Mapping[str, object], kind: Kind) -> bool:
    """Whether an entry of the config is applied as it is written, or changes nothing."""
    if key == "init_lora_weights":
        return value in _PLAIN_STARTS
    if key == "task_type":
        return value in ("CAUSAL_LM", None)
    if key not in plain:  # of another version of peft: only a feature that is off
        return value in (None, False, {}, [])
    if kind == "XLORA" or key in _APPLIED or key in _WITHOUT_EFFECT:
        return True
    return value == plain[key] or value is None


def _require_finite_scale(file: Path, config: Mapping[str, Any], kind: Kind) -> None:
    if kind == "XLORA":
        return
    for key in ("rank_pattern", "alpha_pattern"):
        if not isinstance(config.get(key) or {}, dict):
            raise AdapterUnreadable(f"{file}: {key} is not an object of numbers. {_REMEDY}")
    numbers = {
        "r": config.get("r"),
        "lora_alpha": config.get("lora_alpha"),
        **(config.get("rank_pattern") or {}),
        **(config.get("alpha_pattern") or {}),
    }
    for key, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not isfinite(number):
            raise AdapterUnreadable(f"{file}: {key} is {number!r}, which is not a finite number. {_REMEDY}")


def _defaults(kind: Kind) -> dict[str, object]:
    """Return the keys of peft's config and their defaults."""
    with light_peft():
        from peft import LoraConfig, XLoraConfig  # slow to import

    config: Any = XLoraConfig if kind == "XLORA" else LoraConfig
    return {
        field.name: field.default_factory() if field.default_factory is not MISSING else field.default
        for field in fields(config)
    }


def _slots(model: nn.Module, adapter: str) -> dict[str, Tensor]:
    """Return the tensors of a loaded adapter by their name in a checkpoint."""
    inside = re.compile(rf"\.(lora_\w+)\.{re.escape(adapter)}(?=\.|$)")
    return {
        PREFIX + "." + inside.sub(r".\1", name): value
        for name, value in model.state_dict().items()
        if inside.search(name)
    }


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:2])
    return shown if len(names) <= 2 else f"{shown} and {len(names) - 2} more"


@contextmanager
def light_peft() -> Iterator[None]:
    """Hide bitsandbytes, if nothing has imported it yet, while peft is imported and called.

    peft imports it wherever it is installed, and it then prepares kernels for seconds. Only layers of a
    quantised base model need them, and loading such a model has imported it before.
    """
    if _KERNELS in sys.modules:
        yield
        return
    sys.modules[_KERNELS] = None  # type: ignore[assignment]  # importing it raises ModuleNotFoundError
    try:
        yield
    finally:
        del sys.modules[_KERNELS]
        _forget_absence()


def _forget_absence() -> None:
    """Clear what peft has cached of the absence: a quantised model may be loaded later in this process."""
    from peft import import_utils

    import_utils.is_bnb_available.cache_clear()
    import_utils.is_bnb_4bit_available.cache_clear()
