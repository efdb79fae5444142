"""Measure how long short reads of an SQLite file wait while tensors are written, without HTTP.

    python -m benchmarks.reads_beside_writes [--mib 64] [--repetitions 3] [--folder FOLDER]

One thread stages payloads in transactions of 16 MiB, as an aggregation does. Four others count the
federations every twentieth of a second, each over a connection of the pool. Prints the seconds and processor
seconds of the writing, and the median and the longest of the reads.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from sqlalchemy import func, select

from benchmarks.memory import MIB
from coordinator.db import migrate
from coordinator.db.engine import Database
from coordinator.db.tables.federations import FederationRow
from coordinator.storage import payloads

_PAYLOAD_MIB = 2
_TRANSACTION_MIB = 16
_READERS = 4
_PAUSE_SECONDS = 0.05


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=64, help="how many MiB are written")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the file is, on the disk to be measured")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        database = Database(f"sqlite:///{folder}/tessera.db")
        migrate.prepare(database)
        for _ in range(arguments.repetitions):
            _measure(database, arguments.mib)
        database.close()


def _measure(database: Database, mib: int) -> None:
    reads: list[float] = []
    is_over = threading.Event()
    threads = [threading.Thread(target=_read, args=(database, reads, is_over)) for _ in range(_READERS)]
    for thread in threads:
        thread.start()
    began, used = time.monotonic(), time.process_time()
    _write(database, mib)
    seconds, processor = time.monotonic() - began, time.process_time() - used
    is_over.set()
    for thread in threads:
        thread.join()
    print(
        f"{mib} MiB written in {seconds:.2f} s ({processor:.2f} s of processor time); {len(reads)} reads: "
        f"median {statistics.median(reads):.4f} s, longest {max(reads):.2f} s",
        flush=True,
    )


def _read(database: Database, reads: list[float], is_over: threading.Event) -> None:
    counted = select(func.count()).select_from(FederationRow)
    while not is_over.is_set():
        began = time.monotonic()
        with database.autocommit() as connection:
            connection.execute(counted).scalar()
        reads.append(time.monotonic() - began)
        is_over.wait(_PAUSE_SECONDS)


def _write(database: Database, mib: int) -> None:
    body = np.random.default_rng(0).bytes(_PAYLOAD_MIB * MIB)
    for _ in range(0, mib, _TRANSACTION_MIB):
        with database.write() as session:
            for _ in range(0, _TRANSACTION_MIB, _PAYLOAD_MIB):
                payloads.stage(session).write(session, body)


if __name__ == "__main__":
    main()
