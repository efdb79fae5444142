"""`make test-gpu` without a GPU: an exit status that is no pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_gpu_tests_without_gpu_do_not_pass() -> None:
    done = run("-m", "gpu", "tests/gpu")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "None of the GPU tests ran" in done.stdout
    assert " skipped" in done.stdout


@pytest.mark.long
def test_gpu_tests_beside_other_tests_are_skipped() -> None:
    done = run("tests/gpu", "tests/unit/schemas/maths/test_paired_test.py")
    assert done.returncode == pytest.ExitCode.OK
    assert "None of the GPU tests ran" not in done.stdout
