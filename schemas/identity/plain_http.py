"""Plain HTTP: whether a URL sends secrets unencrypted, without looking up names, and servers without TLS."""

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


def connection_failure(error: Exception) -> str:
    """Describe a failed connection by type and message; an answer without TLS is named as the cause."""
    description = f"{type(error).__name__}: {error}"
    # OpenSSL reads a plain HTTP answer as a TLS record of an unknown version.
    if "WRONG_VERSION_NUMBER" not in description:
        return description
    return f"{description}; the answer is not TLS: check port and proxy, or write http:// for this machine"
