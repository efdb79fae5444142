"""Fixtures of the tests of the operator's commands."""

from __future__ import annotations

import pytest

from tests.scene.coordinator import Served
from tests.scene.operator import Operator


@pytest.fixture
def tessera(coordinator: Served) -> Operator:
    """The command line of an admin."""
    return Operator(coordinator)
