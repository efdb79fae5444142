"""Does the service do what its OpenAPI document says, whatever is sent?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.served import ADMIN_TOKEN, Served

# What is right in form may still be refused for its meaning: an unknown strategy, another protocol version.
# A revoked token stays readable, so that people can see when it was revoked.
EXCLUDED = "positive_data_acceptance,use_after_free"

# Its bodies are tensors; hostile ones have tests of their own. The event stream never ends.
OUT_OF_REACH = r"events|/update$|/join$|/alignments/\{"


@pytest.mark.slow
def test_the_service_does_what_its_document_says(coordinator: Served, tmp_path: Path) -> None:
    coordinator.enrol(coordinator.federation(), "a")
    schemathesis = Path(sys.executable).with_name("st")
    done = subprocess.run(
        [
            *(schemathesis, "run", f"{coordinator.url}/openapi.json", "--no-color"),
            *("--header", f"Authorization: Bearer {ADMIN_TOKEN}"),
            *("--exclude-checks", EXCLUDED, "--exclude-path-regex", OUT_OF_REACH),
            *("--max-examples", "20", "--seed", "1", "--suppress-health-check", "all"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
