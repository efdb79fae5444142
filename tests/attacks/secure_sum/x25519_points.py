"""Points of Curve25519 in affine coordinates: v^2 = u^3 + 486662 u^2 + u over 2^255 - 19. Slow, for tests."""

from __future__ import annotations

PRIME = 2**255 - 19
_A = 486_662
_ORDER_8 = 325606250916557431795983626356110631294008115727848805560023387167927233504
_ROOT_OF_MINUS_1 = pow(2, (PRIME - 1) // 4, PRIME)

Point = tuple[int, int] | None  # None is the identity


def spellings(public: bytes) -> set[bytes]:
    """Return P + T as canonical keys for the eight points T of small order."""
    start, step = _lifted(int.from_bytes(public, "little")), _lifted(_ORDER_8)
    points, torsion = [], None
    for _ in range(8):
        points.append(_sum(start, torsion))
        torsion = _sum(torsion, step)
    assert torsion is None
    return {point[0].to_bytes(32, "little") for point in points if point is not None}


def _lifted(u: int) -> Point:
    """Return a point of the curve with this u; the sign of v does not matter here."""
    square = (u**3 + _A * u**2 + u) % PRIME
    v = pow(square, (PRIME + 3) // 8, PRIME)
    if v * v % PRIME != square:
        v = v * _ROOT_OF_MINUS_1 % PRIME
    assert v * v % PRIME == square, "a point of the twist"
    return u, v


def _sum(first: Point, second: Point) -> Point:
    if first is None or second is None:
        return first or second
    (u1, v1), (u2, v2) = first, second
    if u1 == u2 and (v1 + v2) % PRIME == 0:
        return None
    if u1 == u2:
        slope = (3 * u1 * u1 + 2 * _A * u1 + 1) * pow(2 * v1, -1, PRIME) % PRIME
    else:
        slope = (v2 - v1) * pow(u2 - u1, -1, PRIME) % PRIME
    u3 = (slope * slope - _A - u1 - u2) % PRIME
    return u3, (slope * (u1 - u3) - v1) % PRIME
