"""The environment of HTTP clients: proxies, and the certificates that servers are checked against.

httpx reads the same variables by itself, but ends with a traceback, or blames the URL, if a value is wrong.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

log = logging.getLogger("tessera.http")

_PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")
_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.[0-9]+")
_LABEL = r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?"
_DOMAIN = re.compile(rf"(\*?\.)?{_LABEL}(\.{_LABEL})*\.?", re.IGNORECASE)
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class EnvironmentUnusable(Exception):
    """A variable of the environment has a value that no HTTP client can use; the message names it."""


@dataclass(frozen=True, slots=True)
class Route:
    """How a URL is reached. `proxy` is the URL of a proxy, and `variable` the variable that names it."""

    context: ssl.SSLContext
    proxy: str | None = None
    variable: str = ""

    @property
    def options(self) -> dict[str, object]:
        """The arguments of an httpx client for the URL, which then reads no variable by itself."""
        return {"trust_env": False, "verify": self.context, "proxy": self.proxy}

    def through(self, url: str) -> str:
        """Return the URL as text, with the variable of its proxy."""
        return f"{url} (through the proxy in {self.variable})" if self.proxy else url


def route_to(url: str) -> Route:
    """Return the route to a URL: the proxy of HTTPS_PROXY, HTTP_PROXY or ALL_PROXY unless NO_PROXY names its
    host, and the certificates of SSL_CERT_FILE, SSL_CERT_DIR or certifi. All names in either case.

    Raises:
        EnvironmentUnusable: a variable has a value that cannot be used.
        ValueError: `url` is not a URL.
    """
    target = urlsplit(url)
    _port(target)
    proxy, variable = _proxy(target)
    # Reading certificates takes tens of milliseconds, which plain HTTP need not pay.
    encrypted = target.scheme == "https" or (proxy or "").startswith("https:")
    return Route(_certificates() if encrypted else _no_certificates(), proxy, variable)


def _proxy(target: SplitResult) -> tuple[str | None, str]:
    """Return the proxy for a URL and its variable; None and "" for a direct connection."""
    proxies = getproxies()
    kind = next((kind for kind in (target.scheme, "all") if proxies.get(kind)), None)
    if kind is None or _is_excluded(target, proxies.get("no", "")):
        return None, ""
    variable, value = _variable(f"{kind}_proxy"), proxies[kind].strip()
    url = value if "://" in value else f"http://{value}"
    try:
        parts = urlsplit(url)
        is_usable = bool(parts.hostname) and _port(parts) != 0 and parts.scheme in _PROXY_SCHEMES
    except ValueError:
        is_usable = False
    if not is_usable:
        raise EnvironmentUnusable(
            f"{variable} is {_hidden(value)}, which is not the URL of a proxy; set it to one such as "
            "http://proxy.example.org:3128, or unset it"
        )
    # Checked here, as httpx would end with an ImportError.
    if parts.scheme.startswith("socks") and find_spec("socksio") is None:
        raise EnvironmentUnusable(
            f"{variable} is {_hidden(value)}, and SOCKS proxies need the package socksio; run "
            "pip install 'httpx[socks]', set it to an HTTP proxy, or name the host in NO_PROXY"
        )
    return url, variable


def _is_excluded(target: SplitResult, entries: str) -> bool:
    """Whether an entry of NO_PROXY names the host of a URL; entries that cannot be parsed are left out."""
    host = (target.hostname or "").rstrip(".")
    variable, excluded = _variable("no_proxy"), False
    for entry in (text.strip() for text in entries.split(",")):
        try:
            excluded = (bool(entry) and _matches(entry, host, target)) or excluded
        except ValueError:
            _warn(
                f"{variable}: the entry {entry!r} is left out, as it is no host, address, range of addresses "
                "or domain; correct it"
            )
    return excluded


def _matches(entry: str, host: str, target: SplitResult) -> bool:
    """Whether an entry names a host: `*`, a domain and all below it, an address, or a range of addresses.

    Raises:
        ValueError: the entry is none of these.
    """
    if entry == "*":
        return True
    if "://" in entry:
        scheme, entry = entry.split("://", 1)
        if scheme not in ("all", target.scheme):
            return False
    network = _network(entry)
    if network is not None:
        return any(address in network for address in _addresses(host))
    parts = urlsplit(f"//{entry}")
    name, port = parts.hostname or "", _port(parts)
    # The name may be an address with a port.
    network = _network(name)
    if port is not None and port != (_port(target) or {"https": 443}.get(target.scheme, 80)):
        return False
    if network is not None:
        return any(address in network for address in _addresses(host))
    if not _DOMAIN.fullmatch(name):
        raise ValueError
    name = name.rstrip(".").removeprefix("*")
    if name.startswith("."):
        return host.endswith(name)
    return host == name or (name != "localhost" and host.endswith(f".{name}"))


def _network(text: str) -> _Network | None:
    """Return the range of an address or range, such as 10.0.0.0/8 or [fd00::1]; None for other texts.

    Raises:
        ValueError: the text has a slash and is no range.
    """
    try:
        return ipaddress.ip_network(re.sub(r"^\[(.*)\]", r"\1", text), strict=False)
    except ValueError:
        if "/" in text:
            raise
        return None


def _addresses(host: str) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        yield ipaddress.ip_address(host)
    except ValueError:
        return  # the name of a host is not resolved


def _port(parts: SplitResult) -> int | None:
    """Return the port. Raises ValueError if it is no number of a port."""
    return parts.port


def _variable(name: str) -> str:
    """Return the name of a variable as it is set: lower case is read first, as by urllib."""
    return name if os.environ.get(name) else name.upper()


def _hidden(url: str) -> str:
    """Return a proxy's URL without the name and password in it."""
    return re.sub(r"(://|^)[^/@]*@", r"\1***@", url)


@cache
def _warn(text: str) -> None:
    """Log a warning once per process."""
    log.warning("%s", text)


def _no_certificates() -> ssl.SSLContext:
    """Return a context that trusts no server, for http:// URLs: reading certificates takes time."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _certificates() -> ssl.SSLContext:
    variables = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
    return _tls_context(*(os.environ.get(name) or None for name in variables))


@cache
def _tls_context(file: str | None, folder: str | None, key_log: str | None) -> ssl.SSLContext:
    """Read the certificate authorities, which takes tens of milliseconds, once for all connections."""
    if key_log is not None:
        with _named("SSLKEYLOGFILE", key_log, "a file that can be written"):
            open(key_log, "ab").close()
    if file is not None:
        with _named("SSL_CERT_FILE", file, "a file of certificates in PEM"):
            return ssl.create_default_context(cafile=file)
    if folder is not None:
        _require_hashed(folder)
        return ssl.create_default_context(capath=folder)
    import certifi

    return ssl.create_default_context(cafile=certifi.where())


def _require_hashed(folders: str) -> None:
    """Check folders of certificates.

    Raises:
        EnvironmentUnusable: a folder is missing, or none has a certificate under the hash of its name.
    """
    # OpenSSL looks for certificates by the hash of their subject only, and is silent about all others.
    names: list[str] = []
    for folder in folders.split(os.pathsep):
        with _named("SSL_CERT_DIR", folder, "a folder of certificates in PEM"):
            names += [entry.name for entry in Path(folder).iterdir()]
    if not any(map(_HASHED_NAME.fullmatch, names)):
        raise EnvironmentUnusable(
            f"SSL_CERT_DIR is {folders}, which has no certificate under the hash of its subject; run "
            f"`openssl rehash {folders}`, or set SSL_CERT_FILE to one file of all certificates"
        )


@contextmanager
def _named(variable: str, value: str, needed: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        reason = str(reason).replace("_", " ").lower()
        raise EnvironmentUnusable(
            f"{variable} is {value}, which cannot be used ({reason}); set it to {needed}, or unset it"
        ) from error
