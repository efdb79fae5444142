"""Fuzzing targets: accepted seeds, and named errors for truncated or changed ones."""

from __future__ import annotations

import pytest

from tests.faults.stress.targets import TARGETS, seeds


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_accepts_its_seeds(target: str) -> None:
    assert all(TARGETS[target](seed) for seed in seeds(target))


@pytest.mark.parametrize("target", TARGETS)
def test_truncated_seeds_are_refused(target: str) -> None:
    taken = [TARGETS[target](seed[:cut]) for seed in seeds(target) for cut in range(len(seed))]
    assert not any(taken)


@pytest.mark.parametrize("target", TARGETS)
def test_changed_seeds_raise_only_refusals(target: str) -> None:
    for seed in seeds(target):
        for place in range(0, len(seed), 1 + len(seed) // 200):
            TARGETS[target](seed[:place] + bytes([seed[place] ^ 0x40]) + seed[place + 1 :])
