"""A server that gives scripted answers, and a client of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_agent.transport.client import CoordinatorApi

HELLO = {
    "name": "test",
    "protocol_version": 2,
    "server_time": "2026-01-01T00:00:00Z",
    "signing_key": "",
    "nonce": "",
    "challenge": None,
    "signature": "",
}

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(*answers: Answer) -> Iterator[tuple[str, list[str]]]:
    """Serve these answers one after the other, then repeat the last; yield the URL and the paths."""
    requests: list[str] = []

    class Scripted(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            requests.append(f"{self.path} {self.headers.get('Range', '')}".strip())
            answers[min(len(requests), len(answers)) - 1](self)

        do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def status(code: int, body: object = None, **headers: str) -> Answer:
    def send(request: BaseHTTPRequestHandler) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        request.rfile.read(int(request.headers.get("Content-Length", "0")))
        request.send_response(code)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    return send


def api_for(url: str, slept: list[float], *, deadline: float = 1000.0) -> CoordinatorApi:
    return CoordinatorApi(
        url, key=Ed25519PrivateKey.generate(), deadline_seconds=deadline, sleep=slept.append
    )
