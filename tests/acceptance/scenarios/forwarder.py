"""A forwarder on loopback between an agent and its coordinator, which can swallow an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass
class Forwarder:
    """`swallow(method, path)` decides whose answer never arrives; `swallowed` is set when one did not."""

    url: str
    swallow: Callable[[str, str], bool] = lambda method, path: False
    swallowed: threading.Event = field(default_factory=threading.Event)


@contextmanager
def forwarding(target: str) -> Iterator[Forwarder]:
    """Forward every request to the coordinator at `target`."""
    upstream = httpx.Client(base_url=target, timeout=60, trust_env=False)

    class Forward(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP_BY_HOP}
            with upstream.stream(self.command, self.path, content=body, headers=headers) as answer:
                content = b"".join(answer.iter_raw())
            if forwarder.swallow(self.command, self.path):
                forwarder.swallowed.set()
                self.close_connection = True
                threading.Event().wait(5)  # the agent is killed while it waits for this answer
                return
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = _forward

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    forwarder = Forwarder(f"http://127.0.0.1:{server.server_port}")
    try:
        yield forwarder
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        upstream.close()
