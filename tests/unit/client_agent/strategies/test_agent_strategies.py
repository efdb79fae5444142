"""Starting weights of an agent, strategy by strategy."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from client_agent.errors import StrategyOptionsInvalid, UnknownStrategy
from client_agent.rounds.strategy import load_strategy
from schemas.strategies.registry import strategy_names

LOCAL = {"b0.q.P": np.full((2, 2), 4.0, np.float32), "b0.q.Q": np.zeros(2, np.float32)}
SERVED = {"b0.q.P": np.full((2, 2), 1.0, np.float32), "b0.q.Q": np.ones(2, np.float32)}


@pytest.mark.parametrize("name", strategy_names())
def test_newcomer_starts_from_served_weights(name: str) -> None:
    strategy = load_strategy(name)
    for newcomer in (True, False):
        start = strategy.start(None, SERVED, newcomer=newcomer)
        np.testing.assert_array_equal(start["b0.q.P"], SERVED["b0.q.P"])


@pytest.mark.parametrize("name", strategy_names())
def test_options_that_only_the_coordinator_needs_are_ignored(name: str) -> None:
    strategy = load_strategy(name, {"temperature": 0.1, "sources": "all", "something_new": None})
    assert strategy.options.gated == load_strategy(name).options.gated


@pytest.mark.parametrize("name", strategy_names())
def test_strategy_start_changes_neither_state(name: str) -> None:
    local, served = ({n: v.copy() for n, v in state.items()} for state in (LOCAL, SERVED))
    load_strategy(name).start(local, served, newcomer=False)
    assert all(np.array_equal(local[n], LOCAL[n]) and np.array_equal(served[n], SERVED[n]) for n in LOCAL)


def test_fedavg_starts_from_served_weights() -> None:
    strategy = load_strategy("fedavg")
    assert strategy.start(LOCAL, SERVED, newcomer=False) == SERVED
    assert not strategy.options.gated


def test_gated_fedmosaic_continues_from_its_own_state() -> None:
    strategy = load_strategy("fedmosaic", {"mix": "gate"})
    assert strategy.start(LOCAL, SERVED, newcomer=False) == LOCAL
    assert strategy.start(LOCAL, SERVED, newcomer=True) == SERVED
    assert strategy.options.gated


def test_fedmosaic_continues_from_the_served_state_by_default() -> None:
    strategy = load_strategy("fedmosaic")
    assert strategy.start(LOCAL, SERVED, newcomer=False) == SERVED
    assert not strategy.options.gated


def test_unknown_strategy_is_refused_with_known_names() -> None:
    with pytest.raises(UnknownStrategy, match="fedavg, fedex_lora, fedmosaic"):
        load_strategy("base")
    with pytest.raises(UnknownStrategy, match="update the agent"):
        load_strategy("../errors")


def test_option_without_a_meaning_is_named() -> None:
    with pytest.raises(StrategyOptionsInvalid, match="mix"):
        load_strategy("fedmosaic", {"mix": "blend"})


def test_strategies_need_no_torch() -> None:
    import subprocess

    code = (
        "import sys; from client_agent.rounds.strategy import load_strategy\n"
        "from schemas.strategies.registry import strategy_names\n"
        "[load_strategy(n) for n in strategy_names()]\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
