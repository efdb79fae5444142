"""The coordinator: FastAPI, SQLAlchemy, NumPy. No torch.

from coordinator import Settings, create_app

app = create_app(Settings(database_url="postgresql+psycopg://..."))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.app import create_app as create_app
    from coordinator.settings import Settings as Settings

_EXPORTS = {"Settings": "coordinator.settings", "create_app": "coordinator.app"}


def __getattr__(name: str) -> object:
    """Import an exported name when it is first used, so that the operator's commands need no FastAPI."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
