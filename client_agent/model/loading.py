"""Load a frozen base model, and derive its slug from its exact weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers import __version__ as transformers_version
from transformers.utils import logging as transformers_logging

from client_agent.errors import ModelNotFound, ModelTooLarge, TokenizerUnfit, UnknownArchitecture
from client_agent.model.architectures import Architecture, linear_shape
from client_agent.model.complete import load_complete
from client_agent.model.frozen_prefix import FrozenPrefix
from client_agent.model.gguf import model_folder
from client_agent.model.measurement import measured
from client_agent.model.named_parts import require_named
from client_agent.model.quantization import bits_and_bytes, keep_differentiable
from client_agent.model.slug import config_of, slug_of
from client_agent.model.stop_tokens import read_configured_stops
from client_agent.model.token_rows import compare_rows
from client_agent.model.tokens import TokenStore
from client_agent.model.weight_files import read_header, require_plain, weight_files
from client_agent.settings import Quantization
from schemas.messages.enrolment import LayerRun
from schemas.messages.federations import ALL_ROLES, Role

# Without the latter a folder that names code of its own causes a prompt.
_DATA_ONLY: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_CONTEXTS = ("max_position_embeddings", "max_seq_len", "seq_length")
_UNLIMITED = 2**20  # of models without position embeddings, such as those with ALiBi
_FILES = ["*.json", "model*.safetensors", "*.model", "*.txt", "*.jinja"]


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A frozen base model.

    Attributes:
        tokens: the tokens of examples, each of which is tokenised once.
        prefix: what the layers below the first adapter put out, once it has a store.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    slug: str
    architecture: str
    hidden_size: int
    parts: Architecture
    device: torch.device
    tokens: TokenStore = field(default_factory=TokenStore, repr=False, compare=False)
    prefix: FrozenPrefix = field(default_factory=FrozenPrefix, repr=False, compare=False)

    @property
    def layers(self) -> int:
        return len(self.parts.roles)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Return the roles that at least one layer has, in the order of `ALL_ROLES`."""
        return tuple(role for role in ALL_ROLES if any(role in layer for layer in self.parts.roles))

    @property
    def vocabulary(self) -> int:
        return linear_shape(self.model.get_submodule(self.parts.output_layer))[0]

    @property
    def shapes(self) -> dict[Role, tuple[int, int]]:
        """Return (d_out, d_in) of the roles that every layer has in the same shape."""
        return {role: shape for role in self.roles if (shape := self._shape_everywhere(role)) is not None}

    @property
    def layer_shapes(self) -> dict[Role, tuple[LayerRun, ...]]:
        """Return the layers and shapes of the other roles, as in a profile."""
        return {role: self._runs(role) for role in self.roles if role not in self.shapes}

    def _shape_everywhere(self, role: Role) -> tuple[int, int] | None:
        (first, *further) = (layer[role].shape if role in layer else None for layer in self.parts.roles)
        return first if all(shape == first for shape in further) else None

    def _runs(self, role: Role) -> tuple[LayerRun, ...]:
        shapes = ((layer[role].shape if role in layer else None) for layer in self.parts.roles)
        runs, start = [], 0
        for shape, equal in groupby(shapes):
            end = start + len(list(equal))
            if shape is not None:
                runs.append((start, end - 1, *shape))
            start = end
        return tuple(runs)

    @property
    def positions(self) -> int:
        """Return the length of the context in tokens, scaled rotary positions included."""
        config = cast(Any, self.model.config).get_text_config()
        stated = int(next((x for name in _CONTEXTS if (x := getattr(config, name, None))), _UNLIMITED))
        rope = getattr(config, "rope_parameters", None) or {}
        original = rope.get("original_max_position_embeddings") or stated
        # Configurations state the context before or after scaling.
        return max(stated, int(original * (rope.get("factor") or 1)))


def load_base_model(
    source: str,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    quantization: Quantization = "none",
) -> BaseModel:
    """Load a frozen causal language model from a folder, a .gguf file, the hub's cache or the hub.

    Tensors are moved to `device` one by one, so a quantised model is never there as a whole in `dtype`.

    Raises:
        ModelNotFound: config.json or safetensors weights are missing, ambiguous, or cannot be loaded.
        CheckpointIncomplete: tensors are missing or left over; see `load_complete`.
        ModelTooLarge: `device` has too little memory.
        UnknownArchitecture: its architecture cannot carry adapters; see `measured`.
        TokenizerUnfit: the tokenizer has no character offsets or no end-of-sequence token, or the model has
            no row for that token.
    """
    folder = _folder_of(source)
    config = config_of(folder)
    require_plain(source, config)
    # Before any weight is read, which may take minutes.
    _require_known(folder, str(config.get("model_type")))
    slug = base_model_slug(source)
    cast(Any, transformers_logging).disable_progress_bar()  # one bar per tensor file clutters the log
    try:
        model = load_complete(
            str(folder),
            dtype=dtype,
            # Tensor by tensor, so that a quantised model is never there as a whole in its dtype.
            device_map={"": device},
            quantization_config=bits_and_bytes(quantization, dtype),
            **_DATA_ONLY,
        )
        tokenizer = cast(Any, AutoTokenizer).from_pretrained(folder, **_DATA_ONLY)
        keep_differentiable(model)
        model.requires_grad_(False)
        cast(Any, model).eval()
        parts = measured(model)
    except torch.OutOfMemoryError as error:
        raise ModelTooLarge(
            f"{source}: {device} has no room for it in {str(dtype).removeprefix('torch.')}; "
            "set quantization to nf4, or device to one with more memory"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelNotFound(f"{source}: cannot be loaded ({error}); download the model again") from error
    _check(tokenizer, source, folder)
    compare_rows(tokenizer, model, source)
    return BaseModel(
        model=model,
        tokenizer=tokenizer,
        slug=slug,
        architecture=str(model.config.model_type),
        hidden_size=linear_shape(model.get_submodule(parts.output_layer))[1],
        parts=parts,
        device=device,
    )


def _require_known(folder: Path, kind: str) -> None:
    """Check the architecture by names and shapes, before any weight is read.

    Raises:
        UnknownArchitecture: transformers has no config of this kind, or see `require_named`.
    """
    if kind not in CONFIG_MAPPING:
        raise UnknownArchitecture(
            f"model_type {kind!r} is unknown to transformers {transformers_version}; use a decoder-only "
            "transformer (docs/reference/architectures.md), or a newer transformers"
        )
    try:
        config = cast(Any, AutoConfig).from_pretrained(folder, **_DATA_ONLY)
    except (OSError, ValueError, KeyError) as error:
        raise UnknownArchitecture(
            f"transformers {transformers_version} cannot use the config.json of {folder} ({error}); download "
            "the model again, or use a newer transformers"
        ) from error
    require_named(config)


def base_model_slug(source: str) -> str:
    """Derive the slug of a base model, a folder or a hub id; see `slug_of`."""
    return slug_of(_folder_of(source))


def parameter_count(source: str) -> int:
    """Return the number of stored parameters of a model, from the headers of its files.

    Raises:
        ModelNotFound: the weights are missing or damaged.
    """
    count = 0
    for file in weight_files(_folder_of(source)):
        with file.open("rb") as stream:
            _, header = read_header(stream, file)
        count += sum(prod(entry["shape"]) for entry in header.values())
    return count


def _folder_of(source: str) -> Path:
    source = model_folder(source)
    if Path(source).is_dir():
        return Path(source)
    # A mistyped path must not be asked of the hub.
    if source.startswith((".", "/", "~")):
        raise ModelNotFound(f"{source}: no such folder; set model to the folder that holds config.json")
    from huggingface_hub import snapshot_download  # slow to import, and needed for hub ids only

    try:
        return Path(snapshot_download(source, allow_patterns=_FILES))
    except (OSError, ValueError) as error:
        raise ModelNotFound(
            f"{source}: neither a folder nor a model that can be downloaded from the hub ({error}); "
            "check the name, or download the model and set model to its folder"
        ) from error


def load_tokenizer(source: str) -> PreTrainedTokenizerFast:
    """Load a model's tokenizer alone.

    Raises:
        ModelNotFound: it cannot be loaded.
        TokenizerUnfit: the tokenizer has no character offsets or no end-of-sequence token.
    """
    folder = _folder_of(source)
    try:
        tokenizer = cast(Any, AutoTokenizer).from_pretrained(folder, **_DATA_ONLY)
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"{source}: its tokenizer cannot be loaded ({error})") from error
    _check(tokenizer, source, folder)
    return cast(PreTrainedTokenizerFast, tokenizer)


def _check(tokenizer: Any, source: str, folder: Path) -> None:
    """Raise if training cannot use a tokenizer; else read where its model ends generation."""
    if not getattr(tokenizer, "is_fast", False):
        raise TokenizerUnfit(
            f"{source}: its tokenizer has no character offsets; save it as a fast tokenizer (tokenizer.json)"
        )
    if getattr(tokenizer, "eos_token_id", None) is None:
        raise TokenizerUnfit(
            f"{source}: its tokenizer has no eos token; set eos_token in tokenizer_config.json"
        )
    read_configured_stops(tokenizer, folder)
