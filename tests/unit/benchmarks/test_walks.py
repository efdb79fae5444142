"""The budget of files that a round runs through."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# A feature that a plan does not use must not stand in its round. Lower a number when a walk becomes shorter.
# Of the agent's round, three files are `revisions`, as every round's kept state becomes one, and one is
# `rounds/planned_parts`, which asks for the parts of a plan's training. Of the update, one is the memory
# budget that uploads and downloads have in common.
BUDGETS = {"update": 78, "aggregation": 50, "agent's round": 99}


@pytest.mark.slow
def test_walks_of_a_plain_round_keep_their_budget() -> None:
    program = (
        "import json; from benchmarks.walks import walk_files\n"
        "print(json.dumps({walk: sorted(files) for walk, files in walk_files().items()}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    walks = json.loads(done.stdout.splitlines()[-1])
    counts = {walk: len(files) for walk, files in walks.items()}
    assert all(counts[walk] <= budget for walk, budget in BUDGETS.items()), counts
