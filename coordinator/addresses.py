"""Check the public names, the root path and the proxies of a coordinator, and compare requests with them.

Names and proxies are lists in one text, separated by commas, as in an environment variable. Pure.
"""

from __future__ import annotations

import re
from functools import cache
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from schemas.identity.addresses import normal_root_path

SERVED: Final = frozenset(
    {"v1", "docs", "openapi.json", "healthz", "readyz", "metrics", "icon.svg", "page.css", "page.js"}
)
"""The first segments of the coordinator's paths, which a root path must not begin with."""


def checked_names(names: str) -> str:
    """Return host names with or without port; raise ValueError for an invalid one."""
    for name in _listed(names):
        if not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:[0-9]+)?", name):
            raise ValueError(f"{name} is not a host name; give host and port of the URL that clients use")
    return names


def checked_root_path(text: str) -> str:
    """Return the path before the coordinator's own paths; raise ValueError if it is invalid."""
    path = normal_root_path(text)
    first = path.partition("/")[2].partition("/")[0]
    # Requests below such a root path could not be told from the coordinator's own.
    if first in SERVED:
        raise ValueError(f"the coordinator's own paths begin with /{first} too; choose another path")
    return path


def checked_proxies(proxies: str) -> str:
    """Return addresses and networks, or `*`; raise ValueError for an invalid one."""
    for proxy in _listed(proxies):
        try:
            if proxy != "*":
                ip_network(proxy)
        except ValueError as error:
            raise ValueError(
                f"{error}; write addresses like 10.0.0.5 and networks like 10.0.0.0/8"
            ) from error
    return proxies


def checked_issuer(issuer: str) -> str:
    """Return the address of an identity provider; raise ValueError unless it is https or of this machine."""
    url = urlsplit(issuer)
    if issuer and url.scheme != "https" and url.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise ValueError(
            "it is not an https:// address, so others on the network could sign in as anybody; use https://"
        )
    return issuer


def checked_documentation(url: str) -> str:
    """Return the address of a documentation site; raise ValueError unless a browser can follow it safely."""
    if url and urlsplit(url).scheme not in ("https", "http"):
        raise ValueError("it is not an http:// or https:// address; give the one that people open")
    return url


def is_among_names(authority: str, names: str) -> bool:
    """Whether a Host field is one of these names; a name without a port matches every port."""
    listed = {name.lower() for name in _listed(names)}
    # Names of hosts do not depend on case (RFC 9110, section 4.2.3).
    host = authority.lower()
    return host in listed or re.sub(r":[0-9]*$", "", host) in listed


def is_among_proxies(address: str | None, proxies: str) -> bool:
    """Whether an address is one of these, or in one of their networks."""
    listed = _listed(proxies)
    if not listed or address is None:
        return False
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    # Addresses are networks of one host, so that one comparison serves both.
    return any(proxy == "*" or parsed in ip_network(proxy) for proxy in listed)


@cache
def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
