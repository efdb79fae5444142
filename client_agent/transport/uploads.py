"""Headers of requests that carry a tensor body."""

from __future__ import annotations

from schemas.wire.compress import is_frame
from schemas.wire.digests import digest_of, to_field
from schemas.wire.envelope import MEDIA_TYPE


def upload_headers(body: bytes) -> dict[str, str]:
    """Return media type, digest and encoding of a body."""
    headers = {"Content-Type": MEDIA_TYPE, "Content-Digest": to_field(digest_of(body))}
    if is_frame(body):
        headers["Content-Encoding"] = "zstd"
    return headers
