"""Fixtures of the tests of rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.training.data import SiloData
from client_agent.training.silo import Silo
from tests.scene.agent_pair import Pair
from tests.scene.coordinator import Served


@pytest.fixture
def pair(served: Served, silo: Silo, tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    """Start a federation of two agents: `pair(**plan)`, CA-PFL by default."""
    with ExitStack() as stack:
        yield lambda **plan: Pair(served, silo, tmp_path, stack, **plan)


@pytest.fixture
def small_silo(tiny: Callable[..., BaseModel]) -> Silo:
    """A silo of 16 examples for training, as many for validation and for tests."""
    rows = tuple(Example(f"rev {i}=", f"{i}"[::-1]) for i in range(100, 148))
    return Silo(tiny(), SiloData(rows[:16], rows[16:32], rows[32:]), None)
