"""Create the agent's folder, with access for the agent's user only."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

from schemas.private_files import FOLDER_MODE, below, tighten

log = logging.getLogger("tessera.agent")

# The agent's entries at the top of its folder; a file during its write has a leading dot.
_AGENT_FILES = re.compile(
    r"\.?(agent\.lock|client\.key|next\.key|membership\.json|prepared\.json|enrolled\.json)(\..*)?|fed_[0-9a-f]+|earlier"
)


def open_folder(folder: Path) -> None:
    """Create the folder with owner-only access, or restrict the agent's existing files to the owner.

    The mode of a folder with foreign files, such as the working directory, is not changed.

    Raises:
        OSError: the folder cannot be created.
    """
    if not folder.exists():
        folder.mkdir(parents=True, mode=FOLDER_MODE, exist_ok=True)
        return
    entries = sorted(folder.iterdir())
    agent_entries = [entry for entry in entries if _AGENT_FILES.fullmatch(entry.name)]
    closed = tighten(
        _walk(folder, agent_entries, is_dedicated=bool(agent_entries) and len(agent_entries) == len(entries))
    )
    if closed:
        log.warning(
            "%s: permissions restricted (%d files and folders were readable by other users of this machine)",
            folder,
            len(closed),
        )


def _walk(folder: Path, agent_entries: list[Path], *, is_dedicated: bool) -> Iterator[Path]:
    if is_dedicated:
        yield folder
    for entry in agent_entries:
        yield from below(entry)
