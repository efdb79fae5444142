"""Measure a round whose tensors are in rows, in files and in S3, phase by phase.

N updates are stored, their columns read in blocks as by an aggregation, N weights written, and downloaded;
before each reading, the tensors have been moved to their place. S3 is moto's server, a process of its own
(`make test-s3` installs it into build/s3), or a bucket that is named. Ratios are to rows.

    python -m benchmarks.payload_places [--clients 8] [--mib 8] [--s3 s3://bucket/prefix]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.s3_server import NoServer, s3_server
from coordinator.db import migrate
from coordinator.db.engine import Database
from coordinator.storage import payload_moves, payloads, server_key

PHASES = ("store updates", "move them", "read blocks", "write weights", "move them too", "download")
_BLOCK = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--mib", type=int, default=8)
    parser.add_argument("--s3", help="a bucket, with AWS_* in the environment; default: moto's server")
    chosen = parser.parse_args()
    with TemporaryDirectory() as folder, bucket(chosen.s3, Path(folder)) as s3:
        places = {"rows": payload_moves.ROWS, "files": f"file://{folder}/objects", "S3": s3}
        seconds = {
            name: a_round(Path(folder), name, place, chosen.clients, chosen.mib * 2**20)
            for name, place in places.items()
            if place is not None
        }
    print(f"{chosen.clients} x {chosen.mib} MiB; seconds, and the ratio to rows")
    print("".join(f"{title:>18}" for title in ("", *seconds)))
    for index, phase in enumerate(PHASES):
        print(f"{phase:>18}" + "".join(f"{times[index]:>18.2f}" for times in seconds.values()))
    rows = sum(seconds["rows"])
    sums = "".join(f"{sum(times):>10.2f} ({sum(times) / rows:.2f})" for times in seconds.values())
    print(f"{'the round':>18}{sums}")


def a_round(folder: Path, name: str, place: str, clients: int, size: int) -> list[float]:
    """Return the seconds of each phase in a new database."""
    seconds: list[float] = []
    with closing(Database(f"sqlite:///{folder / name}.db")) as database:
        migrate.upgrade(database)
        server_key.load(database, None)

        def timed(began: float) -> None:
            seconds.append(time.monotonic() - began)

        began = time.monotonic()
        updates = [stored(database, os.urandom(size)) for _ in range(clients)]
        timed(began)
        timed(moved(database, place))
        began = time.monotonic()
        target = memoryview(bytearray(_BLOCK))
        for begin in range(0, size, _BLOCK):
            for payload_id in updates:
                with database.driver_connection() as driver:
                    payloads.read_into(driver, payload_id, begin, target)
        timed(began)
        began = time.monotonic()
        weights = [stored(database, os.urandom(size)) for _ in range(clients)]
        timed(began)
        timed(moved(database, place))
        began = time.monotonic()
        for payload_id in weights:
            assert sum(len(piece) for piece in payloads.stream(database, payload_id, 0, size)) == size
        timed(began)
    return seconds


def stored(database: Database, body: bytes) -> int:
    with database.write() as session:
        return payloads.store_bytes(session, body)[0]


def moved(database: Database, place: str) -> float:
    """Move all payloads; return when that began."""
    began = time.monotonic()
    for _ in payload_moves.move(database, place):
        pass
    return began


@contextmanager
def bucket(named: str | None, folder: Path) -> Iterator[str | None]:
    """Yield the named bucket, or one of moto's server; None if there is neither."""
    if named is not None:
        yield named
        return
    try:
        with s3_server(folder) as server:
            os.environ |= server.environment
            yield server.bucket
    except NoServer as error:
        print(f"without S3: {error}")
        yield None


if __name__ == "__main__":
    main()
