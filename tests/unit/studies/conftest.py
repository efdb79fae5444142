"""A coordinator for the tests of studies that run in one."""

from __future__ import annotations

import pytest

from tests.scene.coordinator import Served


@pytest.fixture
def served(coordinator: Served) -> Served:
    """A coordinator in which a test's runs make federations of their own."""
    return coordinator
