"""The slug of a base model: a name that follows from its exact weights. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from client_agent.errors import ModelNotFound
from client_agent.model.weight_files import stored_tensors

_IGNORED_CONFIG_KEYS = frozenset(
    {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}
)
_WIDTHS = ("hidden_size", "n_embd", "d_model")
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def slug_of(folder: Path) -> str:
    """Derive the slug of exact weights: `<model type>-<width>x<layers>-<12 hex digits>`.

    The digits are a SHA-256 over config.json, without keys that do not change the function (names, dtypes,
    versions), and over every tensor's name, dtype, shape and bytes, sorted by name: equal for one file and
    for shards. The precision of the weights in memory is not part of the slug.

    Raises:
        ModelNotFound: config.json or safetensors weights are missing, ambiguous or damaged.
    """
    digest = hashlib.sha256()
    # Keys that do not change the function, such as names and versions.
    config = {key: value for key, value in config_of(folder).items() if key not in _IGNORED_CONFIG_KEYS}
    digest.update(json.dumps(config, sort_keys=True).encode())
    for header, chunks in stored_tensors(folder):
        digest.update(header.encode())
        for chunk in chunks:
            digest.update(chunk)
    kind = re.sub(r"[^A-Za-z0-9]+", "-", str(config.get("model_type", "model"))).strip("-")[:80]
    return f"{kind}-{_number(config, _WIDTHS)}x{_number(config, _DEPTHS)}-{digest.hexdigest()[:12]}"


def config_of(folder: Path) -> dict[str, object]:
    """Return the config.json of a model's folder.

    Raises:
        ModelNotFound: the file is missing, or is not a JSON object.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelNotFound(
            f"{folder}: no readable config.json ({error}); set model to a model's folder"
        ) from error
    if not isinstance(config, dict):
        raise ModelNotFound(f"{folder}: config.json is not an object; set model to a model's folder")
    return cast(dict[str, object], config)


def _number(config: Mapping[str, object], names: Sequence[str]) -> object:
    """Return the first of these numbers that config.json has, or its text_config; 0 = none."""
    text = config.get("text_config")
    sources = [config, *([cast(dict[str, object], text)] if isinstance(text, dict) else [])]
    return next((source[name] for source in sources for name in names if name in source), 0)
