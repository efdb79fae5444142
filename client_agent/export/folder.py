"""Put an export into its folder, with a list of its files; replace the files of an earlier export only."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from client_agent import __version__
from client_agent.errors import OutputUnwritable

MANIFEST = "export.json"


@dataclass(frozen=True, slots=True)
class ExportFiles:
    """The files of an export below its folder, and the files in the folder that are not of an export."""

    files: tuple[str, ...]
    foreign: tuple[str, ...]


def require_free(out: Path, *, force: bool) -> None:
    """Check that the folder of an export is missing or empty, or with `force` holds an earlier export.

    Raises:
        OutputUnwritable: it has other files.
    """
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not force:
        raise OutputUnwritable(
            f"--out: {out} is not empty; pass a new folder, or --force to replace the export in it"
        )
    _earlier_files(out)


def place(folder: Path, out: Path, base_model: str, *, force: bool = False) -> ExportFiles:
    """Move all files to their place, readable as other files of the user are.

    With `force`, the files of the earlier export are deleted before, by its list; other files stay.

    Raises:
        OutputUnwritable: see `require_free`; or a file that is not of an export has the name of a new file.
    """
    require_free(out, force=force)
    files = sorted({*_files_below(folder), MANIFEST})
    manifest = {"tessera": __version__, "base_model": base_model, "files": files}
    (folder / MANIFEST).write_text(f"{json.dumps(manifest, indent=1)}\n", "utf-8")
    earlier = _earlier_files(out) if out.is_dir() and any(out.iterdir()) else []
    present = _files_below(out) if out.is_dir() else []
    foreign = sorted(set(present) - set(earlier))
    # Checked before anything is deleted.
    blocking = sorted(set(foreign) & set(files))
    if blocking:
        raise OutputUnwritable(
            f"--out: {out / blocking[0]} is not of an export, and the new export has a file of this name; "
            "move it elsewhere, or pass a new folder"
        )
    for name in earlier:
        (out / name).unlink(missing_ok=True)
    for name in files:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(folder / name, out / name)
    for part in {(out / name).parent for name in earlier} - {out}:
        if part.is_dir() and not any(part.iterdir()):
            part.rmdir()
    return ExportFiles(tuple(files), tuple(foreign))


def _files_below(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()]


def _earlier_files(out: Path) -> list[str]:
    """Return the files that an earlier export wrote into a folder, by its list.

    Raises:
        OutputUnwritable: the folder has no list, or an entry is outside of the folder.
    """
    try:
        files = json.loads((out / MANIFEST).read_bytes())["files"]
        names = [PurePosixPath(name) for name in files]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputUnwritable(
            f"--out: {out} is not empty and has no readable {MANIFEST}, the list of files of an export; pass "
            "a new folder"
        ) from error
    # The list is a file that anybody may have edited, and its entries are deleted.
    if any(name.is_absolute() or ".." in name.parts for name in names):
        raise OutputUnwritable(
            f"--out: {out / MANIFEST} names files outside of the folder; pass a new folder"
        )
    return [name.as_posix() for name in names]
