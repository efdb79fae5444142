"""The peak memory of a process, as the kernel counts it. Linux only."""

from __future__ import annotations

from pathlib import Path

MIB = 2**20


def peak_rss_mib(pid: int | None = None) -> float:
    """Read the largest resident memory that a process ever had, MiB; Linux only."""
    for line in Path(f"/proc/{pid or 'self'}/status").read_text("utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise LookupError("the kernel does not say how much memory a process had at most")
