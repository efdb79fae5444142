"""Load a frozen base model, and derive its slug from its exact weights."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from client_agent.errors import ModelNotFound, ModelTooLarge, TokenizerUnfit
from client_agent.model.architectures import Architecture, architecture_of
from client_agent.model.gguf import model_folder
from client_agent.model.quantization import bits_and_bytes, keep_differentiable
from client_agent.model.stop_tokens import read_configured_stops
from client_agent.model.token_store import TokenStore
from client_agent.settings import Quantization
from schemas.messages.federations import Role

_CHUNK = 1 << 20
_HEADER_LIMIT = 100 * 2**20  # the limit of the safetensors library
_IGNORED_CONFIG_KEYS = frozenset(
    {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}
)
# Without the latter a folder that names code of its own causes a prompt.
_DATA_ONLY: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_FILES = ["*.json", "model*.safetensors", "*.model", "*.txt", "*.jinja"]


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A frozen base model.

    Attributes:
        shapes: (d_out, d_in) of every role.
        tokens: the tokens of examples, each of which is tokenised once.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    slug: str
    architecture: str
    hidden_size: int
    layers: int
    shapes: Mapping[Role, tuple[int, int]]
    device: torch.device
    tokens: TokenStore = field(default_factory=TokenStore, repr=False, compare=False)

    @property
    def parts(self) -> Architecture:
        return architecture_of(self.architecture)

    @property
    def positions(self) -> int:
        """Return the length of the context in tokens, scaled rotary positions included."""
        config = cast(Any, self.model.config)
        stated = int(config.max_position_embeddings)
        rope = getattr(config, "rope_parameters", None) or {}
        original = rope.get("original_max_position_embeddings") or stated
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
        ModelNotFound: config.json or safetensors weights are missing, or cannot be loaded.
        ModelTooLarge: `device` has too little memory.
        UnknownArchitecture: `ARCHITECTURES` has no entry for its model type.
        TokenizerUnfit: the tokenizer has no character offsets or no end-of-sequence token.
    """
    folder = _folder_of(source)
    config = _config_of(folder)
    parts = architecture_of(str(config.get("model_type")))
    if "quantization_config" in config:
        raise ModelNotFound(
            f"{source}: its weights are stored quantised, and no other client's model would equal it; set "
            "model to the dense model, and quantization to nf4 or int8"
        )
    slug = base_model_slug(source)
    cast(Any, transformers_logging).disable_progress_bar()  # one bar per tensor file clutters the log
    try:
        model = cast(
            PreTrainedModel,
            AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                device_map={"": device},
                quantization_config=bits_and_bytes(quantization, dtype),
                **_DATA_ONLY,
            ),
        )
        tokenizer = cast(Any, AutoTokenizer).from_pretrained(folder, **_DATA_ONLY)
    except torch.OutOfMemoryError as error:
        raise ModelTooLarge(
            f"{source}: {device} has no room for it in {str(dtype).removeprefix('torch.')}; "
            "set quantization to nf4, or device to one with more memory"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelNotFound(f"{source}: cannot be loaded ({error}); download the model again") from error
    _check(tokenizer, source, folder)
    keep_differentiable(model)
    model.requires_grad_(False)
    cast(Any, model).eval()
    return BaseModel(
        model=model,
        tokenizer=tokenizer,
        slug=slug,
        architecture=str(model.config.model_type),
        hidden_size=int(model.config.hidden_size),
        layers=int(model.config.num_hidden_layers),
        shapes={role: parts.shape(model, role) for role in parts.roles},
        device=device,
    )


def base_model_slug(source: str) -> str:
    """Derive the slug of exact weights: `<model type>-<width>x<layers>-<12 hex digits>`.

    The digits are a SHA-256 over config.json, without keys that do not change the function (names, dtypes,
    versions), and over every tensor's name, dtype, shape and bytes, sorted by name: equal for one file and
    for shards. The precision of the weights in memory is not part of the slug.

    Raises:
        ModelNotFound: config.json or safetensors weights are missing or damaged.
    """
    folder = _folder_of(source)
    digest = hashlib.sha256()
    config = {key: value for key, value in _config_of(folder).items() if key not in _IGNORED_CONFIG_KEYS}
    digest.update(json.dumps(config, sort_keys=True).encode())
    for header, chunks in _stored_tensors(folder):
        digest.update(header.encode())
        for chunk in chunks:
            digest.update(chunk)
    kind = re.sub(r"[^A-Za-z0-9]+", "-", str(config.get("model_type", "model"))).strip("-")[:80]
    width = config.get("hidden_size", config.get("n_embd", 0))  # GPT-2 has different keys
    size = f"{width}x{config.get('num_hidden_layers', config.get('n_layer', 0))}"
    return f"{kind}-{size}-{digest.hexdigest()[:12]}"


def parameter_count(source: str) -> int:
    """Return the number of stored parameters of a model, from the headers of its files.

    Raises:
        ModelNotFound: the weights are missing or damaged.
    """
    count = 0
    for file in _weight_files(_folder_of(source)):
        with file.open("rb") as stream:
            _, header = _header(stream, file)
        count += sum(prod(entry["shape"]) for entry in header.values())
    return count


def _folder_of(source: str) -> Path:
    source = model_folder(source)
    if Path(source).is_dir():
        return Path(source)
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


def _config_of(folder: Path) -> dict[str, object]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelNotFound(
            f"{folder}: no readable config.json ({error}); set model to a model's folder"
        ) from error
    if not isinstance(config, dict):
        raise ModelNotFound(f"{folder}: config.json is not an object; set model to a model's folder")
    return cast(dict[str, object], config)


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    names = _indexed_files(index) if index.is_file() else {"model.safetensors"}
    files = [folder / name for name in sorted(names)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelNotFound(
            f"{folder}: {missing[0]} is missing, and only safetensors weights are loaded; "
            "convert the weights with save_pretrained()"
        )
    return files


def _indexed_files(index: Path) -> set[str]:
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelNotFound(f"{index}: damaged index ({error!r}); download it again") from error


def _stored_tensors(folder: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield (name, dtype, shape as text; bytes in chunks) of every stored tensor, sorted by name."""
    places: dict[str, tuple[Path, int, dict[str, Any]]] = {}
    for file in _weight_files(folder):
        with file.open("rb") as stream:
            start, header = _header(stream, file)
        places.update({name: (file, start, entry) for name, entry in header.items()})
    for name in sorted(places):
        file, start, entry = places[name]
        begin, end = entry["data_offsets"]
        yield f"{name} {entry['dtype']} {entry['shape']}", _bytes(file, start + begin, end - begin)


def _header(stream: BinaryIO, file: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    try:
        (size,) = struct.unpack("<Q", stream.read(8))
        if size > _HEADER_LIMIT:
            raise ValueError(f"a header of {size} bytes")
        header = json.loads(stream.read(size))
    except (struct.error, ValueError) as error:
        raise ModelNotFound(f"{file}: damaged safetensors file ({error}); download it again") from error
    header.pop("__metadata__", None)
    return 8 + size, header


def _bytes(file: Path, start: int, count: int) -> Iterator[bytes]:
    with file.open("rb") as stream:
        stream.seek(start)
        while count:
            chunk = stream.read(min(count, _CHUNK))
            if not chunk:
                raise ModelNotFound(f"{file}: shorter than its header says; download it again")
            count -= len(chunk)
            yield chunk


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
