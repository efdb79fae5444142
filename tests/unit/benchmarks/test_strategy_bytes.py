"""The bytes of all strategies, measured on real bodies."""

from __future__ import annotations

from benchmarks.communication import Model
from benchmarks.strategy_bytes import measure
from schemas.strategies.registry import strategy_names

TINY = Model("tiny", 4, {role: (256, 256) for role in ("q", "k", "v", "o", "gate", "up", "down")})


def test_strategies_receive_no_more_bytes_in_int8() -> None:
    rows = {row.strategy: row for row in measure(TINY)}
    assert {*strategy_names(), "fedmosaic, several base models", "ca_pfl after its warm-up"} == rows.keys()
    for row in rows.values():
        assert all(few <= all_ for few, all_ in zip(row.int8, row.own_last, strict=True))
        assert row.own_last[0] > 4 * row.values
    coded = rows["fedavg"]
    assert coded.int8[0] < 0.01 * coded.own_last[0]
    assert coded.int8[1] < 0.3 * coded.own_last[0]
    ca_pfl = rows["ca_pfl"]
    assert ca_pfl.int8[1] < 0.3 * ca_pfl.own_last[1]
    assert rows["ca_pfl after its warm-up"].up < 0.5 * ca_pfl.up
    flora = rows["flora"]
    assert flora.int8 == flora.own_last
