"""Profiles of the server: shares by function of the coordinator, and flame graphs."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import flame_graph, stack_samples
from benchmarks.stack_samples import KINDS, SamplingFailed, sampled

ROOT = Path(__file__).parents[3]
WORK = "import hashlib\ndef work():\n    while True: hashlib.sha256(bytes(1000))\nprint(flush=True)\nwork()"
SAMPLES = f"""\
run (threading.py:1);run ({ROOT}/coordinator/db/engine.py:8);execute (base.py:3) 30
run (threading.py:1);run ({ROOT}/coordinator/db/engine.py:8);read (<frozen io>:1) 10
run (threading.py:1);wait (threading.py:2) 900
main (server.py:1) 10
"""


def test_profiles_are_shown_and_drawn(tmp_path: Path) -> None:
    for kind in ("processor", "wall"):
        (tmp_path / f"profile.{kind}.txt").write_text(SAMPLES, "utf-8")
    profile = stack_samples.read(tmp_path / "profile")
    console = Console(record=True, width=100)
    flame_graph.show(console, "processor", profile["processor"])
    shown = console.export_text()
    assert "0.5 s in all" in shown, "waiting for work does not count"
    assert "80%" in shown, "the stack counts for the function of the coordinator"
    flame_graph.draw(tmp_path / "profile.svg", profile["wall"])
    titles = [
        title.text for title in ET.parse(tmp_path / "profile.svg").iter() if title.tag.endswith("title")
    ]
    assert "<frozen io>:read 0.100 s" in titles


@pytest.mark.slow  # py-spy takes seconds to attach
def test_a_working_process_is_sampled(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            for kind in KINDS:
                with (
                    sampled(kind, process.pid, tmp_path / "profile"),
                    pytest.raises(subprocess.TimeoutExpired),
                ):
                    process.wait(timeout=2)
        finally:
            process.kill()
    for stacks in stack_samples.read(tmp_path / "profile").values():
        assert sum(seconds for stack, seconds in stacks.items() if "<string>:work" in stack) > 0.5


def test_sampling_an_ended_process_fails(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True)
    with (
        pytest.raises(SamplingFailed, match="py-spy ended with status"),
        sampled("processor", int(process.stdout), tmp_path / "profile"),
    ):
        pass
