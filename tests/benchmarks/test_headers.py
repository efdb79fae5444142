"""The benchmark of headers runs, at a size that means nothing, and every hostile header is refused."""

from __future__ import annotations

from benchmarks import headers
from schemas.maths.adapter import lora_layout


def test_every_hostile_header_is_measured_beside_an_honest_one() -> None:
    result = headers.measure(lora_layout(40, {"q": (8, 8)}, 1))
    assert [row["name"] for row in result["headers"]][:-1] == list(headers.HOSTILE)
    assert all(row["seconds"] >= 0 and 0 < row["mib"] < 64 for row in result["headers"])
