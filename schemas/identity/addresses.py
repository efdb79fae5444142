"""The address at which clients reach the coordinator, as both sides compare it: root path and authority.

A proxy may remove the root path before it passes a request on, but signatures cover the path as the client
sent it. Only unreserved characters are allowed, which no proxy encodes in another way.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_ROOT_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
_DEFAULT_PORT = re.compile(r":(?:80|443)$")


class RootPathInvalid(ValueError):
    """A text is no root path; the message names the fault."""


def normal_root_path(text: str) -> str:
    """Return a root path without its trailing slash; "" for the root of the host.

    Raises:
        RootPathInvalid: it is not a path of unreserved characters, such as `/tessera`.
    """
    path = text.strip().rstrip("/")
    if not path:
        return ""
    if not path.startswith("/"):
        raise RootPathInvalid("it is a path and begins with a slash; write only the path, such as /tessera")
    if not _ROOT_PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
        raise RootPathInvalid(
            "a proxy may change some of its characters or segments; use letters, digits, -, _, . and ~ "
            "between single slashes"
        )
    return path


def root_path_of(url: str) -> str:
    """Return the path of a coordinator's URL as sent, without its trailing slash."""
    return urlsplit(url).path.rstrip("/")


def equivalent_authorities(host: str) -> tuple[str, ...]:
    """Return the authorities that a client may have signed if this Host field arrived."""
    # Upper case and a default port make no difference (RFC 9421, section 2.2.3): clients leave the port
    # out, and some proxies add it.
    authority = host.lower()
    return tuple(dict.fromkeys((authority, _DEFAULT_PORT.sub("", authority))))
