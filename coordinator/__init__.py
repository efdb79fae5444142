"""The coordinator: FastAPI, SQLAlchemy, NumPy. No torch.

from coordinator import Settings, create_app

app = create_app(Settings(database_url="postgresql+psycopg://..."))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from coordinator.app import create_app as create_app
    from coordinator.settings import Settings as Settings

__getattr__, __dir__ = lazy_exports(
    __name__,
    {"Settings": "coordinator.settings", "create_app": "coordinator.app"},
)
