"""Learning rates of P and Q in a frame."""

from __future__ import annotations

import numpy as np
import pytest

from client_agent.adapters.frames import frame_of

RNG = np.random.default_rng(0)


def test_step_size_does_not_depend_on_frame_size() -> None:
    """A is fitted to give the pivot's z; so z is what a step of P meets in every base model."""
    z, signs = RNG.normal(size=4), np.sign(RNG.normal(size=(4, 4)))
    directions, _ = np.linalg.qr(RNG.normal(size=(12, 4)))  # the pivot's B is orthonormal
    for factor in (0.1, 1.0, 7.0):
        frame = frame_of(RNG.normal(size=(4, 9)) / factor, directions * factor)
        moved = np.linalg.norm(frame.B @ (frame.rate * signs) @ z)
        assert moved == pytest.approx(np.linalg.norm(signs @ z), rel=1e-5)


def test_zero_frame_has_rate_one() -> None:
    assert frame_of(np.ones((2, 3)), np.zeros((5, 2))).rate == 1


def test_frame_rate_holds_for_unequal_oblique_directions() -> None:
    """Fitted frames are so. In the mean over signs S, |B S z|^2 = |B|^2 |z|^2 in the Frobenius norm."""
    rng = np.random.default_rng(0)
    z, r = rng.normal(size=6), 6
    mixing = np.triu(np.ones((r, r))) * np.logspace(-2, 1, r)
    b = np.linalg.qr(rng.normal(size=(40, r)))[0] @ mixing
    assert np.abs(b.T @ b - np.diag(np.diag(b.T @ b))).max() > 1  # else other laws would say the same
    frame = frame_of(rng.normal(size=(r, 9)), b)
    steps = np.sign(rng.normal(size=(20_000, r, r)))
    moved = np.square(steps @ (frame.rate * z) @ frame.B.T).sum(-1).mean()
    pivots = np.square(steps @ z).sum(-1).mean()  # its B is orthonormal, its rate 1
    assert moved == pytest.approx(pivots, rel=0.03)
