"""Make the agent's folder, and keep what is in it to the agent's user."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

from schemas.private_files import FOLDER_MODE, below, tighten

log = logging.getLogger("tessera.agent")

# What an agent writes at the top of its folder; a file that is being written has a dot before its name.
_OWN = re.compile(r"\.?(agent\.lock|client\.key|next\.key|membership\.json)(\..*)?|fed_[0-9a-f]+|earlier")


def open_folder(folder: Path) -> None:
    """Make the folder, closed to others, or close what an earlier version left open to them.

    A folder that has other files in it, such as the current one, stays as it is; ours in it are closed.

    Raises:
        OSError: it cannot be made.
    """
    if not folder.exists():
        folder.mkdir(parents=True, mode=FOLDER_MODE, exist_ok=True)
        return
    entries = sorted(folder.iterdir())
    own = [entry for entry in entries if _OWN.fullmatch(entry.name)]
    closed = tighten(_everything(folder, own, is_alone=bool(own) and len(own) == len(entries)))
    if closed:
        log.warning(
            "%s: %d files and folders could be read by other users of this machine; now they cannot",
            folder,
            len(closed),
        )


def _everything(folder: Path, own: list[Path], *, is_alone: bool) -> Iterator[Path]:
    if is_alone:
        yield folder
    for entry in own:
        yield from below(entry)
