"""Outputs on public texts: the content of rows, mixtures, and refused distributions."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.messages.updates import WeightsManifest
from schemas.wire.envelope import Array, pack, unpack
from schemas.wire.errors import TensorDtype, TensorSchema
from schemas.wire.outputs import BYTES, MOST_ROWS, SHARES, TOP, VALUES, Outputs, mixed, slots

MANIFEST = WeightsManifest(federation="f", recipe={}, round=1, client="c", pack=None)


def rows(*content: dict[int, float]) -> Outputs:
    dense = np.zeros((len(content), VALUES), np.float32)
    for row, shares in enumerate(content):
        for byte, share in shares.items():
            dense[row, byte] = share
    return Outputs.of(dense)


def read(tensors: dict[str, Array]) -> Outputs | None:
    with unpack(pack(tensors, MANIFEST), encoding=None, expected=slots(), max_bytes=2**24) as envelope:
        return Outputs.read(envelope)


def test_a_row_has_the_likeliest_bytes_in_float16() -> None:
    dense = np.zeros((1, VALUES), np.float32)
    dense[0, :10] = np.linspace(0.19, 0.01, 10)
    sent = Outputs.of(dense)
    assert sent.bytes.tolist() == [[*range(TOP)]]
    np.testing.assert_allclose(sent.dense()[0, :TOP], dense[0, :TOP], rtol=1e-3)
    assert sent.dense()[0, TOP:].sum() == 0
    back = read(sent.tensors)
    assert back is not None
    assert back.dense().tobytes() == sent.dense().tobytes()


def test_a_row_with_denormal_shares_is_accepted() -> None:
    sure = rows({97: 1.0, **dict.fromkeys(range(7), 1e-6)})
    assert np.count_nonzero(sure.shares) == TOP
    assert read(sure.tensors) is not None


def test_a_mixture_weights_only_outputs_with_that_row() -> None:
    first, second = rows({1: 1.0}, {2: 1.0}, {}), rows({1: 0.5, 3: 0.5}, {}, {})
    dense = mixed([first, second], np.array([0.75, 0.25])).dense()
    np.testing.assert_allclose([dense[0, 1], dense[0, 3]], [0.875, 0.125], rtol=1e-3)
    assert dense[1, 2] == 1.0  # the second has no token there
    assert not dense[2].any()


def test_a_row_without_permitted_weights_is_omitted() -> None:
    first, second = rows({1: 1.0}, {2: 1.0}), rows({1: 1.0}, {})
    dense = mixed([first, second], np.array([0.5, 0.5]), lambda weights: bool(weights.all())).dense()
    assert dense[0, 1] == 1.0
    assert not dense[1].any()


def test_a_mixture_with_rounding_above_one_is_accepted() -> None:
    high = np.array([[0.505] * 2 + [0.0] * 6], np.float16)
    sent = Outputs(np.arange(TOP, dtype=np.uint8)[None], high)
    assert read(sent.tensors) is not None
    assert read(mixed([sent, sent], np.array([0.9, 0.1])).tensors) is not None


def test_rows_beyond_one_block_are_mixed() -> None:
    many = Outputs(
        np.zeros((9000, TOP), np.uint8), np.tile(np.array([1.0] + [0.0] * 7, np.float16), (9000, 1))
    )
    assert (mixed([many], np.array([1.0])).dense()[:, 0] == 1.0).all()


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({SHARES: None}, "of one shape, or neither"),
        ({BYTES: np.zeros((2, TOP), np.uint8)}, "of one shape"),
        ({SHARES: np.full((1, TOP), 0.2, np.float16)}, "not a distribution"),
        ({SHARES: np.full((1, TOP), -0.1, np.float16)}, "not a distribution"),
        ({SHARES: np.full((1, TOP), np.nan, np.float16)}, "not a distribution"),
        ({SHARES: np.full((1, TOP), np.inf, np.float16)}, "not a distribution"),
        ({BYTES: np.zeros((1, TOP), np.uint8), SHARES: np.full((1, TOP), 0.1, np.float16)}, "a byte twice"),
        ({SHARES: np.zeros((1, 7), np.float16)}, "must have the shape"),
        ({name: np.zeros((0, TOP), dtype) for name, dtype in ((BYTES, "u1"), (SHARES, "f2"))}, "0 rows"),
        (
            {name: np.zeros((MOST_ROWS + 1, TOP), dtype) for name, dtype in ((BYTES, "u1"), (SHARES, "f2"))},
            f"send 1 to {MOST_ROWS}",
        ),
    ],
)
def test_rows_that_are_no_distribution_are_refused(change: dict[str, Array | None], refusal: str) -> None:
    tensors = {
        name: values for name, values in (rows({1: 1.0}).tensors | change).items() if values is not None
    }
    with pytest.raises(TensorSchema, match=refusal):
        read(tensors)


def test_log_probabilities_in_place_of_bytes_are_refused() -> None:
    with pytest.raises(TensorDtype):
        read({**rows({1: 1.0}).tensors, BYTES: np.zeros((1, TOP), np.float32)})


def test_a_body_without_outputs_has_none() -> None:
    assert read({}) is None
