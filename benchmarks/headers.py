"""Processor time and memory of refusing hostile safetensors headers, beside reading an honest one as long.

    python -m benchmarks.headers [--out FILE.json]

Every header has 1 MiB, the most that is read, and is read under the limits of a layout that needs as much.
Seconds are the least of five runs; the ratio is to the honest header of the same run. Memory is that of
Python's allocator while the header is read, the header itself not included.
"""

from __future__ import annotations

import argparse
import io
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from math import prod
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks import figures
from schemas.maths.adapter import Layout, lora_layout
from schemas.messages.federations import ALL_ROLES
from schemas.wire.envelope import slots
from schemas.wire.errors import BodyRefused
from schemas.wire.header import HEADER_LIMIT, HeaderLimits, header_limits, read_header, write_header

_RUNS = 5
_AT_ONCE = 2  # as many as a coordinator decodes
_LARGEST_BODY = 2**40
_LAYERS = 920  # of seven roles: the header has just under 1 MiB


def _joined(entries: Iterable[str], opening: str, closing: str, size: int) -> bytes:
    """Return the largest number of entries that fits, between brackets."""
    room, fitting = size - len(opening) - len(closing), list[str]()
    for entry in entries:
        room -= len(entry) + 1
        if room < 0:
            break
        fitting.append(entry)
    return f"{opening}{','.join(fitting)}{closing}".encode()


def _numbered(entry: str) -> Iterator[str]:
    return (entry % number for number in count())


def _repeated(entry: str) -> Iterator[str]:
    return (entry for _ in count())


HOSTILE: Final[dict[str, Callable[[int], bytes]]] = {
    "arrays as deep as fits": lambda size: b'{"a":' + b"[" * (size - 5),
    "objects as deep as fits": lambda size: b'{"a":' * (size // 5),
    "arrays of depth 900": lambda size: _joined(_repeated("[" * 900 + "]" * 900), '{"a":[', "]}", size),
    "empty entries": lambda size: _joined(_numbered('"%x":{}'), "{", "}", size),
    "entries that are numbers": lambda size: _joined(_numbered('"%x":1'), "{", "}", size),
    "entries with long names": lambda size: _joined(_numbered('"%0120x":{}'), "{", "}", size),
    "duplicate keys": lambda size: _joined(_repeated('"a":1'), "{", "}", size),
    "an entry of many members": lambda size: _joined(_numbered('"%x":1'), '{"a":{', "}}", size),
    "an entry of many extents": lambda size: _joined(_repeated("1"), '{"l0.q.A":{"shape":[', "]}}", size),
    "numbers of 40 digits": lambda size: _joined(_repeated("9" * 40), '{"a":[', "]}", size),
    "an integer of many digits": lambda size: b'{"a":' + b"9" * (size - 6) + b"}",
    "a fraction of many digits": lambda size: b'{"a":0.' + b"9" * (size - 8) + b"}",
    "an exponent of many digits": lambda size: b'{"a":1e' + b"9" * (size - 8) + b"}",
    "one long name": lambda size: b'{"' + b"x" * (size - 6) + b'":1}',
    "escaped characters": lambda size: b'{"' + b"\\u00e9" * (size // 6 - 1) + b'":1}',
    "lone surrogates": lambda size: b'{"' + b"\\ud800" * (size // 6 - 1) + b'":1}',
    "names with escapes": lambda size: _joined(_numbered('"\\u00e9%x":1'), "{", "}", size),
    "empty arrays": lambda size: _joined(_repeated("[]"), '{"a":[', "]}", size),
    "empty strings": lambda size: _joined(_repeated('""'), '{"a":[', "]}", size),
    "many keys of metadata": lambda size: _joined(_numbered('"%x":""'), '{"__metadata__":{', "}}", size),
}
"""Headers of at most so many bytes that no client writes; none is accepted for any layout."""


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.headers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/headers.json"))
    arguments = parser.parse_args()
    result = measure(lora_layout(_LAYERS, {role: (8192, 8192) for role in ALL_ROLES}, 1))
    figures.write(arguments.out, {**figures.machine(), **result})
    title = f"honest header of {result['bytes']:,} bytes: {1e3 * result['seconds']:.0f} ms"
    rows = [
        (row["name"], f"{1e3 * row['seconds']:.1f}", f"{row['ratio']:.2f}", f"{row['mib']:.1f}")
        for row in result["headers"]
    ]
    figures.show(Console(), title, ("header", "ms", "/ honest", "MiB"), rows)


def measure(layout: Layout) -> dict[str, Any]:
    """Read an honest header of a layout and hostile ones as long, one by one and two at once."""
    text = write_header({name: ("F32", shape) for name, shape in layout.items()}, {})[8:]
    reader = _Reader(layout, header_limits(slots(layout), max_bytes=_LARGEST_BODY))
    size = min(len(text), HEADER_LIMIT)
    honest = _seconds(lambda: reader.read(text))
    headers = [_measure(name, make(size), reader, honest) for name, make in HOSTILE.items()]
    dearest = max(headers, key=lambda row: float(row["seconds"]))
    body = HOSTILE[dearest["name"]](size)
    headers.append(_measure(f"{_AT_ONCE} at once: {dearest['name']}", body, reader, honest, times=_AT_ONCE))
    return {"bytes": len(text), "tensors": len(layout), "seconds": honest, "headers": headers}


class _Reader:
    """Reads headers as a coordinator reads those of a client with this layout."""

    def __init__(self, layout: Layout, limits: HeaderLimits) -> None:
        self._expected = slots(layout)
        self._limits = limits
        self._values = 4 * sum(map(prod, layout.values()))

    def read(self, text: bytes) -> bool:
        """Whether a header is accepted."""
        source = io.BytesIO(len(text).to_bytes(8, "little") + text)
        try:
            read_header(source, 8 + len(text) + self._values, self._expected, limits=self._limits)
        except BodyRefused:
            return False
        return True


def _measure(name: str, text: bytes, reader: _Reader, honest: float, times: int = 1) -> dict[str, Any]:
    def read() -> None:
        with ThreadPoolExecutor(times) as pool:
            accepted = list(pool.map(reader.read, [text] * times))
        if any(accepted):
            raise AssertionError(f"accepted: {name}")

    seconds = _seconds(read)
    tracemalloc.start()
    try:
        read()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return {"name": name, "seconds": seconds, "ratio": seconds / honest, "mib": peak / 2**20}


def _seconds(run: Callable[[], object]) -> float:
    """Return the processor time of a run of all threads, the least of some."""
    durations = []
    for _ in range(_RUNS):
        began = time.process_time()
        run()
        durations.append(time.process_time() - began)
    return min(durations)


if __name__ == "__main__":
    main()
