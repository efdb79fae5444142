"""HTTP client of the coordinator's operator API, for studies and for the pivot's pack."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Self

import httpx

from client_agent.errors import CoordinatorRefused, NameUnclear
from client_agent.transport.client import route_of
from schemas.lookups import NamedEntry, NotIdentified, id_of
from schemas.wire.compress import is_frame
from schemas.wire.digests import digest_of, to_field
from schemas.wire.envelope import MEDIA_TYPE

Answer = dict[str, Any]
_PAGE = 100


class Operator:
    """An operator's HTTP calls.

    Args:
        is_local: whether the coordinator runs on this machine or cluster, so that no proxy is used.

    Raises:
        CoordinatorRefused: every call, for an answer that is an error.
        SettingsUnusable: a variable of the environment names an unusable proxy or certificate.
    """

    def __init__(self, url: str, token: str, *, is_local: bool = True) -> None:
        self.url = url
        options: dict[str, Any] = {"trust_env": False} if is_local else route_of(url).options
        self._client = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60, **options
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str) -> Answer:
        return _content(self._client.get(path))

    def post(self, path: str, content: object = None) -> Answer:
        return _content(self._client.post(path, json=content))

    def put(self, path: str, content: object) -> Answer:
        return _content(self._client.put(path, json=content))

    def delete(self, path: str) -> Answer:
        return _content(self._client.delete(path))

    def put_tensors(self, path: str, body: bytes) -> Answer:
        headers = {"Content-Type": MEDIA_TYPE, "Content-Digest": to_field(digest_of(body))}
        if is_frame(body):
            headers["Content-Encoding"] = "zstd"
        return _content(self._client.put(path, content=body, headers=headers))

    def federation_id(self, text: str) -> str:
        """Return the id of the federation with this id or name.

        Raises:
            NameUnclear: none has it, or several have the name.
        """

        def entries() -> list[NamedEntry]:
            return [
                NamedEntry(entry["id"], entry["name"], entry["state"])
                for entry in self.every("/v1/federations")
            ]

        try:
            return id_of(text, "federation", entries, "tessera federation list")
        except NotIdentified as error:
            raise NameUnclear(str(error)) from error

    def every(self, path: str) -> list[Answer]:
        """Read all pages of a list."""
        items: list[Answer] = []
        after: str | None = None
        while True:
            page = self.get(f"{path}?limit={_PAGE}" + (f"&after={after}" if after else ""))
            items += page["items"]
            after = page["next"]
            if after is None:
                return items


def _content(answer: httpx.Response) -> Answer:
    if answer.is_error:
        request = answer.request
        raise CoordinatorRefused(answer.status_code, "", answer.text, f"{request.method} {request.url.path}")
    content: Answer = json.loads(answer.content) if answer.content else {}
    return content
