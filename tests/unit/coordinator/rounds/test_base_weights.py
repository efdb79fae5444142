"""Base weights: the values with which a client starts."""

from __future__ import annotations

import tracemalloc

from coordinator.rounds import base_weights
from schemas.messages.updates import WeightsManifest
from schemas.wire.digests import digest_of

LAYOUT = {f"b{block}.q.{part}": (1,) for block in range(200) for part in "PQ"}


def manifest(client: str) -> WeightsManifest:
    return WeightsManifest(federation="f", recipe={}, round=1, client=client, pack=None)


def test_zeros_are_named_by_the_whole_body() -> None:
    for _ in range(2):  # made, and remembered
        for client in ("a", "b"):
            named, zeros = base_weights.zeros(LAYOUT, manifest(client))
            body = zeros.head + b"".join(zeros.pieces())
            assert (named.digest, named.bytes) == (digest_of(body), len(body))


def test_zeros_need_less_memory_than_their_heads() -> None:
    tracemalloc.start()
    try:
        for i in range(60):
            _, zeros = base_weights.zeros(LAYOUT, manifest(f"client-{i}"))
        allocated = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert allocated < 60 * len(zeros.head) / 4
