"""Objects of payloads in S3 and compatible stores, Google Cloud, Azure, or a folder.

An object's place is a URL such as `s3://bucket/prefix/12-3fa9...`; it is written once and never changed.
Credentials come from the variables of each store, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from coordinator.errors import SettingsUnusable, Unavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az", "file")
PIECE_BYTES = 2**18
"""Bytes of an object under one digest, the least that is read of it."""

PIECE_DIGEST_BYTES = 32

BLOCK_BYTES = 4 * 2**20
"""Bytes that a sequential reader fetches at a time."""

_BLOCKS = 16
_PART_BYTES = 8 * 2**20
_TIMEOUTS = {"timeout": "60s", "connect_timeout": "10s"}
_RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}


def require_url(url: str) -> None:
    """Check the form of a store's URL, without a request to the store.

    Raises:
        SettingsUnusable: obstore is missing, or the URL is not that of a store.
    """
    scheme, _, path = url.partition("://")
    has_bucket = path.partition("/")[0] or scheme == "file"
    if scheme not in SCHEMES or not has_bucket or not path.strip("/"):
        raise SettingsUnusable(
            f"{url} is not the URL of an object store; write s3://BUCKET/PREFIX, gs://, az:// or file:///FOLDER"
        )
    _require_obstore()


def require_store(url: str) -> None:
    """Check that the store at a URL answers to a listing; nothing is written.

    Raises:
        SettingsUnusable: obstore is missing, or the URL is not that of a store.
        Unavailable: the store does not answer, or refuses the credentials.
    """
    require_url(url)
    with _explained(url):
        next(iter(_store(url).list(chunk_size=1)), None)


def put(place: str, content: Iterable[bytes]) -> None:
    """Write an object, in parts if it is large; it exists whole or not at all.

    Raises:
        Unavailable: the store does not answer, or refuses the credentials.
    """
    base, key = _parted(place)
    with _explained(base):
        store = _store(base)
        import obstore  # after `_store`, which explains how to install it

        with obstore.open_writer(store, key, buffer_size=_PART_BYTES) as writer:
            for piece in content:
                writer.write(piece)


def put_small(place: str, text: str) -> None:
    """Write or replace an object of a few bytes at once.

    Raises:
        Unavailable: the store does not answer, or refuses the credentials.
    """
    base, key = _parted(place)
    with _explained(base):
        _store(base).put(key, text.encode(), use_multipart=False)


def small(place: str) -> str | None:
    """Read an object that `put_small` wrote; None if there is none.

    Raises:
        Unavailable: the store does not answer, or refuses the credentials.
    """
    base, key = _parted(place)
    with _explained(base):
        try:
            return bytes(_store(base).get(key).bytes()).decode("utf-8", "replace")
        except FileNotFoundError:
            return None


def read(place: str, begin: int, end: int) -> bytes:
    """Read a range of an object.

    Raises:
        LookupError: there is no such object, or it is shorter.
        Unavailable: the store does not answer, or refuses the credentials.
    """
    base, key = _parted(place)
    with _explained(base):
        try:
            content = bytes(_store(base).get_range(key, start=begin, end=end))
        except FileNotFoundError:
            raise
        except Exception as error:  # stores have errors of their own for a range beyond the end
            # Asked for only after an error, since it is a request of its own.
            if _store(base).head(key)["size"] < end:
                raise LookupError(_shorter(place, begin, end)) from error
            raise
    if len(content) != end - begin:
        raise LookupError(_shorter(place, begin, end))
    return content


def _shorter(place: str, begin: int, end: int) -> str:
    return f"{place} has no bytes {begin} to {end}"


@dataclass(frozen=True, slots=True)
class CheckedObject:
    """An object with the digests of its pieces: its content may have been replaced since it was written.

    Attributes:
        digests: SHA-256 of each piece from number `first` on.
    """

    place: str
    size: int
    digests: bytes
    first: int

    def read(self, begin: int, end: int) -> bytes:
        """Read whole pieces, and compare each with its digest.

        Args:
            begin: a multiple of `PIECE_BYTES`; `end` is a multiple or the size.

        Raises:
            LookupError: the object is missing, shorter, or not what was moved there.
        """
        begin_at = (begin // PIECE_BYTES - self.first) * PIECE_DIGEST_BYTES
        count = -(-(end - begin) // PIECE_BYTES)
        content = read(self.place, begin, end)
        if piece_digests(content) != self.digests[begin_at : begin_at + count * PIECE_DIGEST_BYTES]:
            raise LookupError(
                f"{self.place} is not what was moved there; restore the object from a backup of the store "
                f"(bytes {begin} to {end})"
            )
        return content


def piece_digests(content: bytes) -> bytes:
    """Return the digests of all pieces of a content that begins with a piece."""
    view = memoryview(content)
    starts = range(0, len(view), PIECE_BYTES)
    return b"".join(hashlib.sha256(view[start : start + PIECE_BYTES]).digest() for start in starts)


def ranged(stored: CheckedObject, begin: int, end: int) -> Iterator[bytes]:
    """Yield a range of an object in one request, for readers that do not read on behind it."""
    first = begin - begin % PIECE_BYTES
    last = min(stored.size, -(-end // PIECE_BYTES) * PIECE_BYTES)
    yield stored.read(first, last)[begin - first : end - first]


def read_ahead(stored: CheckedObject, begin: int, end: int) -> Iterator[bytes]:
    """Yield a range of an object, from whole blocks that later reads use again."""
    while begin < end:
        first = begin - begin % BLOCK_BYTES
        block = _block(stored, first, min(stored.size, first + BLOCK_BYTES))
        piece = block[begin - first : end - first]
        yield piece
        begin += len(piece)


def listed(base: str) -> Iterator[list[tuple[str, datetime]]]:
    """Yield all objects below a URL in batches, as (place, time of its last change)."""
    with _explained(base):
        for batch in _store(base).list():
            yield [(f"{base}/{item['path']}", item["last_modified"]) for item in batch]


def delete(places: Sequence[str]) -> None:
    """Delete objects of one store; missing ones do not matter."""
    if places:
        base = _parted(places[0])[0]
        keys = [_parted(place)[1] for place in places]
        with _explained(base):
            store = _store(base)
            try:
                store.delete(keys)
            except FileNotFoundError:  # a folder stops there; a replica may have swept at the same time
                for key in keys:
                    with suppress(FileNotFoundError):
                        store.delete(key)


def _parted(place: str) -> tuple[str, str]:
    base, _, key = place.rpartition("/")
    return base, key


@lru_cache(_BLOCKS)
def _block(stored: CheckedObject, begin: int, end: int) -> bytes:
    return stored.read(begin, end)


def _require_obstore() -> None:
    if find_spec("obstore") is None:
        raise SettingsUnusable(
            "payloads in an object store need obstore: pip install '.[coordinator,object-store]'"
        )


@cache
def _store(url: str) -> ObjectStore:
    _require_obstore()
    from obstore.store import from_url

    if url.startswith("file:"):
        return from_url(url, mkdir=True)
    allows_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true"  # options hide the variable
    client: Any = {**_TIMEOUTS, "allow_http": allows_http}
    retries: Any = _RETRIES
    store: ObjectStore = from_url(url, client_options=client, retry_config=retries)
    return store


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Convert errors of a store to those of the coordinator."""
    try:
        yield
    except FileNotFoundError as error:
        raise LookupError(f"{url} has no such object: {str(error).splitlines()[0]}") from error
    except Exception as error:
        if not isinstance(error, OSError) and not type(error).__module__.startswith("obstore"):
            raise
        reason = str(error).splitlines()[0]
        raise Unavailable(f"the payload store {url} does not answer ({reason}); it is tried again") from error
