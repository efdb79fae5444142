"""The benchmark of headers at a small size: hostile headers and an honest one."""

from __future__ import annotations

from benchmarks import headers
from schemas.maths.adapter import lora_layout


def test_hostile_headers_are_measured_beside_an_honest_one() -> None:
    result = headers.measure(lora_layout(40, {"q": (8, 8)}, 1))
    assert [row["name"] for row in result["headers"]][:-1] == list(headers.HOSTILE)
    assert all(row["seconds"] >= 0 and 0 < row["mib"] < 64 for row in result["headers"])
