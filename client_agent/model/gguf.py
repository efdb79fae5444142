"""Convert a GGUF file to a model folder with safetensors weights, once per file."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import time
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast

import torch
from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from client_agent.agent_entries import MODELS
from client_agent.errors import CheckpointIncomplete, ModelNotFound
from client_agent.model.complete import load_complete

SUFFIX = ".gguf"
_PART = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.gguf$", re.IGNORECASE)
_ABANDONED_SECONDS = 3600.0

log = logging.getLogger(__name__)


def model_folder(source: str, home: Path | None = None) -> str:
    """Return a source with safetensors weights: `source` itself, or the folder of a converted GGUF file.

    Weights are dequantised to bfloat16, so that all silos that convert the same file have the same base model
    and slug. The folder is `<home>/models/<name>-<12 hex digits of the file's SHA-256>`; without a `home` it
    is in the user's cache.

    Raises:
        ModelNotFound: the file is missing or no GGUF, or transformers cannot convert its architecture.
    """
    if not source.lower().endswith(SUFFIX):
        return source
    file = Path(source).expanduser()
    # By content: a replaced file of the same name is converted anew.
    folder = (home or _cache()) / MODELS / f"{file.stem}-{_digest(file)[:12]}"
    if not _is_complete(folder):
        _convert(file, folder)
    return str(folder)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tessera"


def _is_complete(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ModelNotFound(
            f"{file}: cannot be read ({error.strerror}); give the path of a .gguf file"
        ) from error


def _convert(file: Path, folder: Path) -> None:
    """Convert into a folder beside `folder`, and rename it when it is complete and on disk.

    If another process was faster, its folder stays: a model may be loading from it.
    """
    if _PART.search(file.name):
        raise ModelNotFound(
            f"{file}: one part of a model in several files; join them with `llama-gguf-split --merge`, "
            "and set model to the joined file"
        )
    log.info("%s: converting %.0f MB to safetensors; this is done once", file, file.stat().st_size / 1e6)
    started = time.monotonic()
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}-"
    _delete_abandoned(folder.parent, prefix)
    unfinished = Path(mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        _write(file, unfinished)
        for path in unfinished.iterdir():
            # Before the rename, so that a complete folder is complete after a crash as well.
            _fsync(path)
        _publish(unfinished, folder)
    except ImportError as error:
        raise ModelNotFound(
            f"{file}: converting needs the package gguf ({error}); see README, Install"
        ) from error
    except CheckpointIncomplete:
        raise
    except Exception as error:  # transformers and gguf have no common error for a file they cannot read
        raise ModelNotFound(
            f"{file}: cannot be converted ({error}); give a folder with safetensors weights"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    log.info("%s: converted to %s in %.0f s", file, folder, time.monotonic() - started)


def _publish(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        if not _is_complete(folder):  # else another process was faster
            raise
    _fsync(folder.parent)


def _delete_abandoned(parent: Path, prefix: str) -> None:
    """Delete what killed conversions left; one that runs keeps its folder for _ABANDONED_SECONDS."""
    for path in parent.glob(f"{prefix}*"):
        if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(file: Path, folder: Path) -> None:
    from transformers import GgufConfig  # absent from releases that cannot dequantise
    from transformers import modeling_gguf_pytorch_utils as gguf_files

    cast(Any, transformers_logging).disable_progress_bar()
    # A bar of tqdm itself, which that call does not reach.
    if hasattr(gguf_files, "tqdm"):
        cast(Any, gguf_files).tqdm = partial(cast(Any, gguf_files).tqdm, disable=True)
    place: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    tokenizer = cast(Any, AutoTokenizer).from_pretrained(str(file.parent), **place)
    # bfloat16 for all: silos that convert the same file must get the same slug.
    dense = GgufConfig(dequantize=True)
    model = load_complete(str(file.parent), **place, quantization_config=dense, dtype=torch.bfloat16)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
