"""Coverage-guided fuzzing of the readers of foreign bytes: only the named errors may be raised.

python -m tests.faults.stress.fuzz TARGET [--seconds 60]

Needs `pip install -e '.[fuzz]'` (atheris). What breaks a target is written to runs/fuzz. What decodes is also
broken by an input that takes more memory than three times the largest body that may be decoded.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["schemas"]):
    from tests.faults.stress.targets import DECODING, LIMIT, TARGETS, seeds

_FOUND = Path("runs/fuzz")
_MOST_BYTES = 3 * LIMIT
_RESET_PEAK = b"5"
_PEAK = re.compile(rb"VmHWM:\s*(\d+) kB")


class TooMuchMemory(Exception):
    """An input took more than it may."""


def main() -> None:
    """Fuzz one target; ends with status 0 when nothing was found."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    arguments = parser.parse_args()
    _FOUND.mkdir(parents=True, exist_ok=True)
    corpus = Path(tempfile.mkdtemp(prefix=f"fuzz-{arguments.target}-"))
    for place, seed in enumerate(seeds(arguments.target)):
        (corpus / str(place)).write_bytes(seed)
    options = [
        f"-max_total_time={arguments.seconds}",
        "-rss_limit_mb=0",  # the fuzzer's own tables grow with every input: each input's own use is measured
        "-timeout=5",
        f"-artifact_prefix={_FOUND}/",
        "-max_len=16384",
        "-print_final_stats=1",
    ]
    target = TARGETS[arguments.target]
    watched = _measured(target) if arguments.target in DECODING else target
    atheris.Setup([sys.argv[0], *options, str(corpus)], watched)
    atheris.Fuzz()


def _measured(target: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
    """Watch the memory that each input takes."""
    status = os.open("/proc/self/status", os.O_RDONLY)
    reset = os.open("/proc/self/clear_refs", os.O_WRONLY)

    def peak() -> int:
        match = _PEAK.search(os.pread(status, 4096, 0))
        assert match is not None
        return int(match[1]) * 1024

    def take(data: bytes) -> bool:
        os.pwrite(reset, _RESET_PEAK, 0)
        before = peak()
        was_taken = target(data)
        needed = peak() - before
        if needed > _MOST_BYTES:
            raise TooMuchMemory(f"{needed} bytes")
        return was_taken

    return take


if __name__ == "__main__":
    main()
