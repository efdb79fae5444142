"""Which pages of the reference are generated, and which of them are stale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from docs.generate import (
    architectures,
    commands,
    errors,
    http_api,
    metrics,
    packages,
    plan,
    python_api,
    settings,
)

GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "cli.md": commands.page,
    "settings.md": settings.page,
    "plan.md": plan.page,
    "errors.md": errors.page,
    "metrics.md": metrics.page,
    "architectures.md": architectures.page,
    "python.md": python_api.page,
    "packages.md": packages.page,
}

ON_SITE: Final[Mapping[str, Callable[[], str]]] = {"http-api.md": http_api.page}
"""Pages that the documentation site generates in place of the short page in the repository."""


def stale(folder: Path) -> dict[str, str]:
    """Return the pages whose file differs from what the code says, with their new text."""
    texts = {name: write() for name, write in GENERATED.items()}
    return {name: text for name, text in texts.items() if _stored(folder / name) != text}


def _stored(file: Path) -> str | None:
    return file.read_text("utf-8") if file.exists() else None
