"""What is fuzzed begins with inputs that are taken, and what is cut or changed is refused by its name."""

from __future__ import annotations

import pytest

from tests.stress.targets import TARGETS, seeds


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_takes_what_it_begins_with(target: str) -> None:
    assert all(TARGETS[target](seed) for seed in seeds(target))


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_but_a_refusal_comes_of_what_is_cut_anywhere(target: str) -> None:
    taken = [TARGETS[target](seed[:cut]) for seed in seeds(target) for cut in range(len(seed))]
    assert not any(taken)


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_but_a_refusal_comes_of_what_is_changed_anywhere(target: str) -> None:
    for seed in seeds(target):
        for place in range(0, len(seed), 1 + len(seed) // 200):
            TARGETS[target](seed[:place] + bytes([seed[place] ^ 0x40]) + seed[place + 1 :])
