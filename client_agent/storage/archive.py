"""What an earlier client, or a later state of the coordinator, left in this agent's folder: moved aside.

Its rounds would be taken for ours, and its manifests contradict those that we are given. It is kept as
evidence and used by nobody.
"""

from __future__ import annotations

import json
import logging
import os
from itertools import count
from pathlib import Path

from client_agent.storage.files import fsync_folder, write_durably
from client_agent.storage.round_folder import MANIFEST, WEIGHTS, RoundFolders
from schemas.identity.documents import is_signed
from schemas.identity.keys import public_key

log = logging.getLogger("tessera.agent")

_EARLIER = "earlier"


def set_aside(home: Path, *, federation: str, client: str, server_key: str) -> None:
    """Move a federation's folder away unless it is this client's, or nothing of a round is in it."""
    if home.is_dir() and not _is_ours(home, federation, client, server_key):
        move_aside(home)


def move_aside(path: Path, whose: str = "an earlier client's") -> None:
    """Move a file or folder to where it is kept and not used."""
    place = _place(path)
    os.rename(path, place)
    for folder in (place.parent, path.parent):
        fsync_folder(folder)
    log.warning("%s is %s: it is kept as %s, and not used", path, whose, place)


def keep_copy(file: Path) -> None:
    """Copy a file to where things are kept and not used: it is about to be replaced."""
    write_durably(_place(file), file.read_bytes())


def _place(path: Path) -> Path:
    kept = path.parent / _EARLIER
    kept.mkdir(exist_ok=True)
    return next(candidate for n in count(1) if not (candidate := kept / f"{path.name}-{n}").exists())


def _is_ours(home: Path, federation: str, client: str, server_key: str) -> bool:
    # Who accepted a coordinator that does not know of its rounds has only manifests that were set aside.
    told = [home / MANIFEST, *sorted((home / _EARLIER).glob(f"{MANIFEST}-*"))]
    try:
        manifest = json.loads(next(file for file in told if file.exists()).read_bytes())
    except StopIteration:  # a client has a manifest before it has weights
        return not any(folder.has(WEIGHTS) for folder in RoundFolders(home / "rounds").newest_first())
    except ValueError:
        return False
    if not isinstance(manifest, dict) or (manifest.get("federation"), manifest.get("client")) != (
        federation,
        client,
    ):
        return False
    return is_signed("tessera-round-v1", manifest, manifest.get("signature"), public_key(server_key))
