"""Create the agent's folder, with access for the agent's user only."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

from client_agent.agent_entries import FEDERATION, FILES, FOLDERS
from schemas.private_files import FOLDER_MODE, below, tighten

log = logging.getLogger("tessera.agent")

# A file during its write has a leading dot and an ending.
_AGENT_FILES = re.compile(
    rf"\.?({'|'.join(map(re.escape, FILES))})(\..*)?"
    rf"|{'|'.join(map(re.escape, FOLDERS))}|{FEDERATION}"
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
    agent_entries = [entry for entry in entries if is_agent_entry(entry)]
    # Foreign files, as in a working directory, keep their mode, and so does a folder that has some.
    closed = tighten(
        _walk(folder, agent_entries, is_dedicated=bool(agent_entries) and len(agent_entries) == len(entries))
    )
    if closed:
        log.warning(
            "%s: permissions restricted (%d files and folders were readable by other users of this machine)",
            folder,
            len(closed),
        )


def is_agent_entry(path: Path) -> bool:
    """Whether an entry at the top of an agent's folder is the agent's."""
    return _AGENT_FILES.fullmatch(path.name) is not None


def _walk(folder: Path, agent_entries: list[Path], *, is_dedicated: bool) -> Iterator[Path]:
    if is_dedicated:
        yield folder
    for entry in agent_entries:
        yield from below(entry)
