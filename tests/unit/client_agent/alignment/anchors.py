"""Anchor texts that tiny models can fit."""

from __future__ import annotations

from schemas.messages.alignment import Anchor


def anchors_for(count: int = 96) -> list[Anchor]:
    words = [f"{a}{b}{c}" for a in "abcde" for b in "fghij" for c in "klmno"]
    return [
        Anchor(id=f"a{i}", prompt=f"say {w} again=", answer=w[: 1 + i % 3])
        for i, w in enumerate(words[:count])
    ]
