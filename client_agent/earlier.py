"""What an earlier client left in this agent's folder: moved aside, kept as evidence, used by nobody.

Its rounds would be taken for ours, and its manifests contradict those that we are given.
"""

from __future__ import annotations

import json
import logging
import os
from itertools import count
from pathlib import Path

from client_agent.round_folder import MANIFEST, WEIGHTS, RoundFolders, fsync_folder
from schemas.identity.documents import is_signed
from schemas.identity.keys import public_key

log = logging.getLogger("tessera.agent")

_EARLIER = "earlier"


def set_aside(home: Path, *, federation: str, client: str, server_key: str) -> None:
    """Move a federation's folder away unless it is this client's, or nothing of a round is in it."""
    if home.is_dir() and not _is_ours(home, federation, client, server_key):
        move_aside(home)


def move_aside(path: Path) -> None:
    """Move a file or folder to where it is kept and not used."""
    kept = path.parent / _EARLIER
    kept.mkdir(exist_ok=True)
    place = next(candidate for n in count(1) if not (candidate := kept / f"{path.name}-{n}").exists())
    os.rename(path, place)
    for folder in (kept, path.parent):
        fsync_folder(folder)
    log.warning("%s is an earlier client's: it is kept as %s, and not used", path, place)


def _is_ours(home: Path, federation: str, client: str, server_key: str) -> bool:
    try:
        manifest = json.loads((home / MANIFEST).read_bytes())
    except FileNotFoundError:  # a client has a manifest before it has weights
        return not any(folder.has(WEIGHTS) for folder in RoundFolders(home / "rounds").newest_first())
    except ValueError:
        return False
    if not isinstance(manifest, dict) or (manifest.get("federation"), manifest.get("client")) != (
        federation,
        client,
    ):
        return False
    return is_signed("tessera-round-v1", manifest, manifest.get("signature"), public_key(server_key))
