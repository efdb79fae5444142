"""Fixtures of the tests of rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from client_agent.training.silo import Silo
from tests.scene.agent_pair import Pair
from tests.scene.coordinator import Served


@pytest.fixture
def pair(served: Served, silo: Silo, tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    """Start a federation of two agents: `pair(**plan)`, CA-PFL by default."""
    with ExitStack() as stack:
        yield lambda **plan: Pair(served, silo, tmp_path, stack, **plan)
