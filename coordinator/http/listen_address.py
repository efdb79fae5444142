"""Check that the service can listen on its address, before anything is created for it."""

from __future__ import annotations

import errno
import socket

from coordinator.errors import SettingsUnusable

_PRIVILEGED = 1024


def require_free(host: str, port: int) -> None:
    """Check that the service can listen on an address, with the options that asyncio sets.

    Raises:
        SettingsUnusable: another program listens there, or the address is not this machine's.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise SettingsUnusable(
            f"TESSERA_HOST: {host} is not a name or address of this machine ({error}); use 127.0.0.1, or "
            "0.0.0.0 for all interfaces"
        ) from error
    for family, kind, protocol, _, address in addresses:
        with socket.socket(family, kind, protocol) as listener:
            # Without it the port of a service that has just ended would not be free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listener.bind(address)
                listener.listen()
            except OSError as error:
                raise SettingsUnusable(_refusal(error, host, port)) from error


def _refusal(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"TESSERA_PORT: another program listens on {host}:{port}; stop it, or choose another port with "
            "--port or TESSERA_PORT"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"TESSERA_HOST: {host} is not an address of this machine; use 127.0.0.1, or 0.0.0.0 for all "
            "interfaces"
        )
    if error.errno in (errno.EACCES, errno.EPERM) and port < _PRIVILEGED:
        return (
            f"TESSERA_PORT: this user may not listen on port {port}; choose a port from {_PRIVILEGED} on, "
            "and put a proxy in front"
        )
    return f"TESSERA_HOST: cannot listen on {host}:{port}: {error.strerror}; choose another address or port"
