"""The size of a stored chunk."""

from __future__ import annotations

CHUNK_BYTES = 2**20
