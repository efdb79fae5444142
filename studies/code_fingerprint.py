"""Digests of the code that determines results and packs, so that results of other code are not reused."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

# Presentation code and launchers, which do not affect results. All other files count, new ones too.
_PRESENTATION = (
    "client_agent/cli",
    "studies/command.py",
    "studies/compare.py",
    "studies/engines.py",
    "studies/progress.py",
    "studies/ray_engine.py",
    "studies/ray_pool.py",
    "studies/report",
    "coordinator/cli",
    "coordinator/dashboard",
)
_RUN = ("client_agent", "coordinator", "schemas", "studies")
_MAKE_PACKS = ("client_agent.adapters", "client_agent.alignment", "client_agent.model", "schemas")


@cache
def code_of_runs() -> str:
    """Return the digest of all code, and of the libraries, that may affect a run's results."""
    return digest_of_code(_RUN)


@cache
def code_of_packs() -> str:
    """Return the digest of the code, and of the libraries, that makes alignment packs."""
    return digest_of_code(_MAKE_PACKS)


def digest_of_code(packages: tuple[str, ...]) -> str:
    """Return the digest of packages without presentation code, and of torch and transformers."""
    digest = hashlib.sha256()
    for library in ("torch", "transformers"):
        # Other versions of these libraries may round differently.
        digest.update(f"{library} {version(library)}\n".encode())
    for name, file in _sources(packages):
        digest.update(f"{name}\n{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _sources(packages: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    for package in packages:
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec is not None else ():
            for file in sorted(Path(root).rglob("*.py")):
                name = f"{package.replace('.', '/')}/{file.relative_to(root).as_posix()}"
                if not any(name == shown or name.startswith(f"{shown}/") for shown in _PRESENTATION):
                    yield name, file
