"""Convert a GGUF file to a model folder with safetensors weights, once per file."""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from client_agent.errors import ModelNotFound

SUFFIX = ".gguf"

log = logging.getLogger(__name__)


def model_folder(source: str, home: Path) -> str:
    """Return a source that `load_base_model` takes: `source` itself, or the folder of a converted GGUF file.

    Weights are dequantised to bfloat16, so that all silos that convert the same file have the same base model
    and slug. The folder is `<home>/models/<name>-<12 hex digits of the file's SHA-256>`.

    Raises:
        ModelNotFound: the file is missing or no GGUF, or transformers cannot convert its architecture.
    """
    if not source.lower().endswith(SUFFIX):
        return source
    file = Path(source).expanduser()
    folder = home / "models" / f"{file.stem}-{_digest(file)[:12]}"
    if not (folder / "config.json").is_file():
        _convert(file, folder)
    return str(folder)


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ModelNotFound(
            f"{file}: cannot be read ({error.strerror}); give the path of a .gguf file"
        ) from error


def _convert(file: Path, folder: Path) -> None:
    """Convert into a folder beside `folder`, and rename it when it is complete."""
    log.info("%s: converting %.0f MB to safetensors; this is done once", file, file.stat().st_size / 1e6)
    started = time.monotonic()
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(file, unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    except ImportError as error:
        raise ModelNotFound(
            f"{file}: converting needs the package gguf ({error}); see README, Install"
        ) from error
    except (OSError, ValueError, RuntimeError, KeyError, NotImplementedError) as error:
        raise ModelNotFound(
            f"{file}: cannot be converted ({error}); give a folder with safetensors weights"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    log.info("%s: converted to %s in %.0f s", file, folder, time.monotonic() - started)


def _write(file: Path, folder: Path) -> None:
    from transformers import GgufConfig  # absent from releases that cannot dequantise

    cast(Any, transformers_logging).disable_progress_bar()
    place = {
        "pretrained_model_name_or_path": str(file.parent),
        "gguf_file": file.name,
        "local_files_only": True,
    }
    tokenizer = cast(Any, AutoTokenizer).from_pretrained(**place)
    dense = GgufConfig(dequantize=True)
    model = cast(
        PreTrainedModel,
        cast(Any, AutoModelForCausalLM).from_pretrained(
            **place, quantization_config=dense, dtype=torch.bfloat16
        ),
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
