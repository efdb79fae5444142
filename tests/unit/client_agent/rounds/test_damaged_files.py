"""Unreadable files of a round: ignored, or reported by name with a remedy."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from client_agent.errors import RoundUnreadable
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import take_part
from client_agent.storage.round_folder import BRIEF, SCORES_SENT, sent_scores
from tests.scene.agents import alone_plan, next_brief


def test_damaged_scores_are_ignored_and_damaged_brief_reported(started: Callable[..., Participant]) -> None:
    participant = started(**alone_plan())
    assert take_part(participant, next_brief(participant))
    first = participant.workspace.rounds.open(1)
    assert sent_scores(first) is not None
    unknown_format = json.dumps({"format": 99, "before": 3}).encode()
    for damaged in (b"", b"[]", unknown_format):
        first.write(SCORES_SENT, damaged)
        first.write(BRIEF, damaged)
        assert sent_scores(first) is None
        with pytest.raises(RoundUnreadable, match=r"brief\.json cannot be read.* move "):
            OpenedBrief.read(first)
