"""The folder from which a server reads revisions: one folder per revision, and the link `current`.

    tessera-served/
        aster@6/        adapter_config.json, adapter_model.safetensors, ..., revision.json
        aster@7/
        current -> aster@7

A revision's folder appears whole, by one rename, and never changes afterwards. `revision.json` has the
digests of its files. Needs the standard library alone: inference servers import this file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from client_agent.errors import ServedRevisionRefused

RECORD: Final = "revision.json"
CURRENT: Final = "current"
_REVISION = re.compile(r"(?P<name>[^@/\\\0]+)@(?P<number>[1-9][0-9]{0,17})")
_CHUNK = 1 << 20
_REMEDY: Final = "delete the folder, and `tessera agent rollback` writes it again"


@dataclass(frozen=True, slots=True)
class ServedRevision:
    """The content of a `revision.json`.

    Attributes:
        name: the adapter's name, which is the client's.
        revision: the number of the revision; a number is never used again.
        round: the round whose state it is.
        digest: the digest of the agent's own state.
        base_model: the slug of the base model's exact weights.
        base_name: the base model as the exported files name it: a hub id, or the slug.
        format: the format of the export: `peft`, `vllm` or `gguf`.
        files: the digest of each file, by its path below the folder.
    """

    name: str
    revision: int
    round: int
    digest: str
    base_model: str
    base_name: str
    format: str
    validation_loss: float | None
    plan: str | None
    federation: str
    files: Mapping[str, str]

    @property
    def label(self) -> str:
        """Return the name under which a server offers this revision for ever, such as `aster@7`."""
        return label_of(self.name, self.revision)

    def to_bytes(self) -> bytes:
        return (json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n").encode()


def label_of(name: str, number: int) -> str:
    return f"{name}@{number}"


def parsed_label(text: str) -> tuple[str, int] | None:
    """Return the name and the number of a label such as `aster@7`; None for another text."""
    match = _REVISION.fullmatch(text)
    return (match["name"], int(match["number"])) if match else None


@dataclass(frozen=True, slots=True)
class ServedFolder:
    """An export folder; `path` need not exist."""

    path: Path

    def labels(self) -> list[str]:
        """Return the labels of all revisions in the folder, oldest first by name."""
        if not self.path.is_dir():
            return []
        labels = ((parsed_label(entry.name), entry.name) for entry in self.path.iterdir())
        return [name for _, name in sorted((parsed, name) for parsed, name in labels if parsed is not None)]

    def numbers(self, name: str) -> list[int]:
        """Return the numbers of an adapter's revisions, in ascending order."""
        parsed = [parsed_label(label) for label in self.labels()]
        return [entry[1] for entry in parsed if entry is not None and entry[0] == name]

    def current(self) -> str | None:
        """Return the label that `current` names; None where there is no such link.

        Raises:
            OSError: the folder cannot be read.
        """
        try:
            target = os.readlink(self.path / CURRENT)
        except FileNotFoundError:
            return None
        except OSError as error:
            # `current` is there, and is no link.
            if error.errno != errno.EINVAL:
                raise
            return None
        return target if parsed_label(target) else None

    def read(self, label: str) -> tuple[ServedRevision, str]:
        """Return the record of a revision, and the digest of that record.

        Raises:
            ServedRevisionRefused: the folder has no such revision, or its record is damaged or of another.
        """
        # By its listing, so that no part of a label becomes a path.
        if label not in self.labels():
            present = ", ".join(self.labels()) or "none"
            raise ServedRevisionRefused(f"{self.path} has no {label}; it has {present}")
        folder = self.path / label
        if folder.is_symlink():
            raise ServedRevisionRefused(f"{folder} is a link, which no export writes")
        try:
            content = (folder / RECORD).read_bytes()
            revision = ServedRevision(**_typed(json.loads(content)))
        except (OSError, ValueError, TypeError) as error:
            raise ServedRevisionRefused(f"{folder / RECORD} is missing or damaged ({error})") from error
        if revision.label != label:
            raise ServedRevisionRefused(f"{folder} holds {revision.label}: it was renamed or replaced")
        return revision, f"sha256:{hashlib.sha256(content).hexdigest()}"

    def verify(self, revision: ServedRevision) -> None:
        """Check that the folder of a revision has the exported files, and no others.

        Raises:
            ServedRevisionRefused: a file is missing, replaced or foreign.
        """
        folder = self.path / revision.label
        present = {
            path.relative_to(folder).as_posix()
            for path in folder.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }
        # A server may prefer a foreign file, such as adapter_model.bin, to those that were exported.
        foreign = sorted(present - set(revision.files) - {RECORD})
        if foreign:
            raise ServedRevisionRefused(f"{folder / foreign[0]} is not of the export; remove it")
        for name, digest in revision.files.items():
            file = folder / name
            if name not in present:
                raise ServedRevisionRefused(f"{file} is missing; {_REMEDY}")
            if file.is_symlink() or _digest(file) != digest:
                raise ServedRevisionRefused(f"{file} was replaced after the export; {_REMEDY}")

    def seal(self, folder: Path, revision: ServedRevision, mode: int) -> None:
        """Add the record to the finished files in `folder`, and make it the revision's, whole and durably.

        Args:
            folder: a hidden folder in this one.
            mode: the permissions of the files, such as 0o640; folders get the matching ones.
        """
        with (folder / RECORD).open("wb") as file:
            file.write(revision.to_bytes())
        for path in (folder, *folder.rglob("*")):
            # Who may read a file may enter its folder.
            path.chmod(mode | (mode & 0o444) >> 2 if path.is_dir() else mode)
            _sync(path)
        os.rename(folder, self.path / revision.label)
        _sync(self.path)

    def point(self, label: str) -> bool:
        """Make `current` name a revision, atomically and durably; return whether it named another before."""
        if self.current() == label:
            return False
        link, temporary = self.path / CURRENT, self.path / f".{CURRENT}"
        if link.exists() and not link.is_symlink():
            raise ServedRevisionRefused(f"{link} is not a link; move it away, or set another export.folder")
        temporary.unlink(missing_ok=True)
        # Relative, so that the folder can be mounted or copied elsewhere.
        temporary.symlink_to(label)
        os.replace(temporary, link)
        _sync(self.path)
        return True

    def remove(self, label: str) -> None:
        """Delete a revision; its folder disappears by one rename."""
        hidden = self.path / f".{label}.old"
        os.rename(self.path / label, hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def remove_numbers(self, name: str, numbers: Collection[int]) -> None:
        """Delete the revisions of an adapter with these numbers, except the one that `current` names."""
        for number in self.numbers(name):
            label = label_of(name, number)
            if number in numbers and label != self.current():
                self.remove(label)

    def sweep(self) -> None:
        """Delete what a killed export left; no other process may write to the folder meanwhile."""
        if not self.path.is_dir():
            return
        for entry in self.path.iterdir():
            if entry.name == f".{CURRENT}":
                entry.unlink(missing_ok=True)
            elif re.match(r"\.+[^@/]+@[0-9]+\.(new|old)", entry.name) and entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)


def digests_below(folder: Path) -> dict[str, str]:
    """Return the digest of each file below a folder, by its path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {file.relative_to(folder).as_posix(): _digest(file) for file in files}


def _typed(fields: Any) -> dict[str, Any]:
    """Check the types on which the checks of a record rely; raise TypeError or ValueError."""
    if not isinstance(fields, dict) or not isinstance(fields.get("files"), dict):
        raise ValueError("no record of a revision")
    if not all(isinstance(fields.get(key), str) for key in ("name", "base_model", "base_name", "format")):
        raise ValueError("a text is missing")
    names = [PurePosixPath(name) for name in fields["files"]]
    if not names or any(name.is_absolute() or ".." in name.parts for name in names):
        raise ValueError("it lists no files, or files outside of its folder")
    return fields


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def _sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
