"""A session over real HTTP, with the agent's own protocol as its members."""

from __future__ import annotations

from tests.coordinator.secure_sum.members import CONFIRM, KEYS, MASKED, SHARES, UNMASK, summing
from tests.served import Served


def test_all_steps_close_as_soon_as_all_have_answered(coordinator: Served) -> None:
    scene = summing(coordinator)
    scene.begin()
    for step in (KEYS, SHARES, MASKED, CONFIRM, UNMASK):
        scene.step(step)
    status = scene.clients[0].status()
    assert status is not None
    print(status)
    print(scene.view())
    assert status.step == "opening"
