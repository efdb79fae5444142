"""The limit of a header's length, which depends on its layout only."""

from __future__ import annotations

import io
import json
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.maths.adapter import Layout, delta_layout, in_order, lora_layout
from schemas.messages.federations import ALL_ROLES
from schemas.wire.envelope import any_rank, slots
from schemas.wire.errors import TensorHeader
from schemas.wire.header import (
    HEADER_LIMIT,
    METADATA_LIMIT,
    HeaderLimits,
    header_limits,
    least_header_bytes,
    read_header,
    write_header,
)

SMALL = slots({"l0.q.A": (1, 1)})
LARGEST_LIMITS = header_limits(slots(lora_layout(800, dict.fromkeys(ALL_ROLES, (1, 1)), 1)), max_bytes=2**40)

shapes = st.tuples(st.integers(1, 2**17), st.integers(1, 2**17))
layouts = st.builds(
    lora_layout,
    st.integers(1, 40),
    st.dictionaries(st.sampled_from(ALL_ROLES), shapes, min_size=1),
    st.integers(1, 1024),
)


def written(layout: Layout, metadata: dict[str, str]) -> bytes:
    return write_header({name: ("F32", shape) for name, shape in layout.items()}, metadata)


@settings(deadline=None, max_examples=10)
@given(layouts)
def test_a_header_is_written_as_by_json(layout: Layout) -> None:
    expected: dict[str, object] = {"__metadata__": {"tessera": '{"a":1}'}}
    position = 0
    for name, shape in layout.items():
        end = position + 4 * prod(shape)
        expected[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(expected, separators=(",", ":"))
    assert written(layout, {"tessera": '{"a":1}'})[8:].decode().rstrip(" ") == text


@settings(deadline=None, max_examples=10)
@given(layouts, st.booleans())
def test_valid_headers_are_within_their_limits(layout: Layout, with_delta: bool) -> None:
    layout = in_order(layout | delta_layout(layout)) if with_delta else layout
    metadata = {"tessera": "," * (METADATA_LIMIT - 100)}
    head = written(layout, metadata)
    size = len(head) + 4 * sum(map(prod, layout.values()))
    assert least_header_bytes(len(layout)) < len(head)
    for expected in (slots(layout), any_rank(layout)):
        limits = header_limits(expected, max_bytes=size)
        if limits.size < HEADER_LIMIT:
            assert len(read_header(io.BytesIO(head), size, expected, limits=limits).entries) == len(layout)


@pytest.mark.parametrize("layers", [1, 32, 80])
def test_a_header_beyond_its_limit_is_refused_unparsed(layers: int) -> None:
    layout = lora_layout(layers, {"q": (64, 64)}, 1)
    limits = header_limits(slots(layout), max_bytes=2**30)
    assert limits.size < METADATA_LIMIT + 2 * len(written(layout, {}))
    with pytest.raises(TensorHeader, match=f"longer than {limits.size} bytes"):
        read(b"{" + b" " * limits.size + b"}", limits)


def test_metadata_have_their_own_limit() -> None:
    with pytest.raises(TensorHeader, match="__metadata__ is longer than 65536 bytes"):
        read(json.dumps({"__metadata__": {"a": "x" * METADATA_LIMIT}}).encode(), LARGEST_LIMITS)


def read(text: bytes, limits: HeaderLimits) -> None:
    body = len(text).to_bytes(8, "little") + text
    read_header(io.BytesIO(body), len(body), SMALL, limits=limits)
