"""The bytes of an adapter on the wire, measured on real bodies."""

from __future__ import annotations

from benchmarks.communication import MB, Model, measure
from schemas.maths.adapter import size

TINY = Model("tiny", 2, {role: (64, 64) for role in ("q", "k", "v", "o", "gate", "up", "down")})


def test_measured_bytes_include_header_and_shrink_with_bits() -> None:
    rows = {row.case: row for row in measure(TINY)}
    dense = rows["LoRA r=8 on q, v, dense float32"]
    assert dense.values == size(TINY.lora(("q", "v"), 8)) == 4096
    assert dense.down > 4 * dense.values
    assert dense.down < 4 * dense.values + 2048, "values, and a header"
    few = rows["LoRA r=8 on q, v, int4 / int8 (default)"]
    assert few.up < dense.up / 4
    assert few.down < dense.down / 2


def test_pq_bytes_are_independent_of_the_base_model() -> None:
    row = next(row for row in measure(TINY) if row.case == "P, Q r=16, int4 / int8 (default)")
    assert row.values == 7616
    assert row.up / MB < 0.0065
