"""A tiny model whose adapter is removed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from client_agent.adapters.base import require_bare
from client_agent.model.loading import BaseModel


@pytest.fixture
def base(tiny: Callable[..., BaseModel]) -> Iterator[BaseModel]:
    model = tiny()
    yield model
    require_bare(model)
