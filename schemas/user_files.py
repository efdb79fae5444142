"""Files that people name: texts in UTF-8 are read with or without a byte order mark, JSON is unambiguous, and
targets are checked before the work whose result they get."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import NoReturn

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_BLOCKED = _FULL | {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EFBIG}
_BLOCKED |= {errno.ELOOP, errno.ESTALE}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_PROBE_BYTES = 4096


class FileUnusable(Exception):
    """A file or folder that a person named cannot be read or written; the message has path and reason."""


def read_text(file: Path) -> str:
    """Return the text of a file in UTF-8, without a byte order mark.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not UTF-8; the message names UTF-16.
    """
    return decoded(file.read_bytes())


def decoded(content: bytes) -> str:
    """Return a text in UTF-8, without a byte order mark. Raises ValueError as `read_text`."""
    # Editors of Windows save UTF-16; decoding it as UTF-8 would report a strange byte.
    if content.startswith(_UTF_16) or b"\0" in content[:4]:
        raise ValueError("the text is UTF-16 or UTF-32, not UTF-8; save the file as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = f"0x{content[error.start]:02x}"
        raise ValueError(
            f"line {line} has the byte {byte}, which is not UTF-8; save the file as UTF-8"
        ) from error


class NotOneValue(ValueError):
    """JSON with a key twice in an object, or with a number that JSON does not have."""


def parsed_json(text: str) -> object:
    """Parse JSON that a person wrote.

    Raises:
        ValueError: it is not JSON, has a number that is not finite, or has a key twice in an object; the
            message says which.
    """
    try:
        value: object = json.loads(
            text, object_pairs_hook=_distinct, parse_constant=_no_constant, parse_float=_finite
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def require_writable_file(file: Path, option: str) -> None:
    """Check that a file can be written in an existing folder. A file that exists is replaced.

    Raises:
        FileUnusable: it is a folder or a device, or its folder is missing, read-only or full.
    """
    if file.is_dir():
        raise FileUnusable(f"{option}: {file} is a folder; pass the name of a file in it")
    if file.exists() and not file.is_file():
        raise FileUnusable(f"{option}: {file} is no regular file but a device, pipe or socket; pass a file")
    folder = file.absolute().parent
    if not folder.exists():
        raise FileUnusable(
            f"{option}: there is no folder {file.parent}; create it, or pass a file in another folder"
        )
    _probe(folder, option, file)


def require_writable_folder(folder: Path, option: str) -> None:
    """Check that a folder can be written, or created with its missing parents.

    Raises:
        FileUnusable: it or a parent is no folder, or is read-only or full.
    """
    present = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not present.is_dir():
        raise FileUnusable(f"{option}: {present} is not a folder; pass a folder, or the name of a new one")
    _probe(present, option, folder)


def write_text(file: Path, text: str, option: str) -> None:
    """Write a text in UTF-8 to a file, whole or not at all.

    Raises:
        FileUnusable: see `require_writable_file`.
    """
    require_writable_file(file, option)
    target = file.resolve()  # a link stays, and the file behind it is replaced
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(text, "utf-8")
        # Readers see the old file or the whole new one.
        os.replace(temporary, target)
    except OSError as error:
        raise _unwritable(file, option, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def is_full(error: BaseException) -> bool:
    """Whether an error, or its cause, is a full disk or a spent quota."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return True
        cause = cause.__cause__
    return False


def is_blocked(error: OSError) -> bool:
    """Whether an error of the system is a file or disk that cannot be written or read."""
    return error.errno in _BLOCKED


def complaint(error: OSError) -> str:
    """Return an error of the system as one sentence with its path and a way out."""
    remedy = "free disk space" if is_full(error) else "correct the path, its owner or its mount"
    place = error.filename2 or error.filename or "a file"
    return f"{os.fsdecode(place) if isinstance(place, bytes) else place}: {_reason(error)}; {remedy}"


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for key, value in pairs:
        # Otherwise the first of two values is lost without a word.
        if key in members:
            raise NotOneValue(f"the key {key!r} occurs twice in an object")
        members[key] = value
    return members


def _no_constant(name: str) -> NoReturn:
    raise NotOneValue(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise NotOneValue(f"the number {digits} is too large")
    return value


def _probe(folder: Path, option: str, target: Path) -> None:
    """Write a few bytes to a temporary file, as neither mode nor owner shows a read-only or full disk."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            # A full disk shows only when bytes are written.
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(target, option, error) from error


def _unwritable(target: Path, option: str, error: OSError) -> FileUnusable:
    remedy = "free disk space, or pass another path" if is_full(error) else "pass another path"
    return FileUnusable(f"{option}: {target} cannot be written ({_reason(error)}); {remedy}")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
