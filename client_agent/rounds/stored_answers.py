"""Answer requests from a folder instead of the network, on a machine that has none.

`tessera agent sync` has stored the answers that offline steps need: anchors and packs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import httpx

from client_agent.errors import SyncNeeded
from client_agent.storage.files import write_durably
from schemas.messages.alignment import Anchors
from schemas.wire.digests import digest_of, to_field

_ANCHORS = "anchors.json"
_PACKS = "packs"
_PACK_PATH = re.compile(r"/alignments/(?P<base_model>[A-Za-z0-9._-]+)")
_NOT_FOUND = {"type": "urn:tessera:problem:not-found", "title": "not stored on this machine", "status": 404}


def has_anchors(folder: Path) -> bool:
    return (folder / _ANCHORS).is_file()


def store_anchors(folder: Path, anchors: Anchors) -> None:
    write_durably(folder / _ANCHORS, anchors.model_dump_json().encode())


def read_anchors(folder: Path) -> Anchors:
    return Anchors.model_validate_json((folder / _ANCHORS).read_bytes())


def has_pack(folder: Path, base_model: str) -> bool:
    return _pack_file(folder, base_model).is_file()


def store_pack(folder: Path, base_model: str, body: bytes) -> None:
    write_durably(_pack_file(folder, base_model), body)


def _pack_file(folder: Path, base_model: str) -> Path:
    return folder / _PACKS / f"{base_model}.safetensors"


class StoredAnswers(httpx.BaseTransport):
    """Answers with the files of a federation's folder; opens no connection."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Return the stored answer; for a pack that is not stored, 404 as the coordinator does.

        Raises:
            SyncNeeded: only the coordinator can answer.
        """
        path = unquote(request.url.path)
        if request.method == "GET" and path.endswith("/anchors") and has_anchors(self._folder):
            return httpx.Response(200, content=(self._folder / _ANCHORS).read_bytes())
        match = _PACK_PATH.search(path)
        if request.method != "GET" or match is None:
            raise SyncNeeded(request.method, path)
        file = _pack_file(self._folder, match["base_model"])
        if not file.is_file():
            # As the coordinator answers, so that the caller waits for a pack in the same way.
            return httpx.Response(404, content=json.dumps(_NOT_FOUND).encode())
        body = file.read_bytes()
        headers = {"Repr-Digest": to_field(digest_of(body)), "Content-Length": str(len(body))}
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(body))
