"""Plain HTTP: whether a URL sends secrets unencrypted over a network. No name is looked up."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_exposed(url: str) -> bool:
    """Whether `url` is plain HTTP to a host other than a loopback address or localhost."""
    parts = urlsplit(url)
    if parts.scheme.lower() != "http":
        return False
    host = (parts.hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True
