"""Harnesses that are programs: their reported work, and their failures."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

# How each program says what it has done, the last match counting.
_SUMMARY = re.compile(r"number_of_executed_units: (\d+)|(\d+ schedules) in|(\d+ of \d+ mutants \w+)")
_LAST_CHARACTERS = 2000


@dataclass(frozen=True)
class Ran:
    """What a program did, whether it failed, and its last words if so."""

    done: str
    failed: bool
    output: str


def module(*command: str) -> Ran:
    """Run `python -m ...`."""
    done = _run(*command)
    output = done.stdout + done.stderr
    summaries = [next(filter(None, match)) for match in _SUMMARY.findall(output)]
    return Ran(summaries[-1] if summaries else "", done.returncode != 0, output[-_LAST_CHARACTERS:])


def tests(*arguments: str) -> Ran:
    """Run pytest, the slow tests included; what tests record as `summary` is what was done."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        recorded = ("-o", "junit_family=xunit1", f"--junitxml={report}")  # the newer form has no properties
        done = _run("pytest", "-q", "-m", "", *recorded, *arguments)
        summaries = _read_report(report) if report.exists() else []
    return Ran(", ".join(summaries), done.returncode != 0, (done.stdout + done.stderr)[-_LAST_CHARACTERS:])


def _read_report(report: Path) -> list[str]:
    root = ElementTree.parse(report).getroot()
    suites = list(root.iter("testsuite"))
    count = {
        kind: sum(int(suite.get(kind, 0)) for suite in suites)
        for kind in ("tests", "failures", "errors", "skipped")
    }
    passed = count["tests"] - count["failures"] - count["errors"] - count["skipped"]
    properties = root.iter("property")
    summaries = [item.get("value", "") for item in properties if item.get("name") == "summary"]
    return [f"{passed} passed", *summaries]


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
