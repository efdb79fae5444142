"""Move aside files of an earlier client, or of a newer coordinator state; they stay as evidence, unused."""

from __future__ import annotations

import json
import logging
import os
import shutil
from itertools import count
from pathlib import Path

from client_agent.agent_entries import EARLIER
from client_agent.storage.files import fsync_folder, write_durably
from client_agent.storage.round_folder import MANIFEST, SECURE, WEIGHTS, RoundFolders
from schemas.identity.documents import is_signed
from schemas.identity.keys import public_key

log = logging.getLogger("tessera.agent")


def set_aside(home: Path, *, federation_id: str, client_id: str, server_key: str) -> None:
    """Move a federation's folder aside unless it belongs to this client or holds no weights."""
    if home.is_dir() and not _belongs_to(home, federation_id, client_id, server_key):
        move_aside(home)


def move_aside(path: Path, reason: str = "left by an earlier client") -> None:
    """Move a file or folder into `earlier/` beside it; secrets of secure sums are deleted first."""
    # A kept secret could be used once more with another input, which would reveal the difference.
    delete_secrets(path)
    target = _free_name(path)
    os.rename(path, target)
    # The rename changes both folders, and is durable once both are synced.
    for folder in (target.parent, path.parent):
        fsync_folder(folder)
    log.warning("%s: moved to %s (%s); no longer used", path, target, reason)


def delete_secrets(path: Path) -> None:
    """Delete the secrets of all secure sums below a folder."""
    for folder in [entry for entry in path.rglob(SECURE) if entry.is_dir()]:
        shutil.rmtree(folder)
        fsync_folder(folder.parent)


def keep_copy(file: Path) -> None:
    """Copy a file into `earlier/` before it is replaced."""
    write_durably(_free_name(file), file.read_bytes())


def _free_name(path: Path) -> Path:
    archive = path.parent / EARLIER
    archive.mkdir(exist_ok=True)
    return next(candidate for n in count(1) if not (candidate := archive / f"{path.name}-{n}").exists())


def _belongs_to(home: Path, federation_id: str, client_id: str, server_key: str) -> bool:
    # After recovery from a backup of before the first round, only manifests in `earlier/` remain.
    candidates = [home / MANIFEST, *sorted((home / EARLIER).glob(f"{MANIFEST}-*"))]
    try:
        manifest = json.loads(next(file for file in candidates if file.exists()).read_bytes())
    except StopIteration:  # a client has a manifest before it has weights
        return not any(folder.has(WEIGHTS) for folder in RoundFolders(home / "rounds").newest_first())
    # An unreadable manifest cannot prove that the folder is this client's.
    except ValueError:
        return False
    if not isinstance(manifest, dict) or (manifest.get("federation"), manifest.get("client")) != (
        federation_id,
        client_id,
    ):
        return False
    # Ids may repeat in a coordinator that was set up anew; its key does not.
    return is_signed("tessera-round-v1", manifest, manifest.get("signature"), public_key(server_key))
