"""What a browser is shown cannot be framed and runs no script but its own; new secrets are not stored."""

from __future__ import annotations

import re

import pytest

from tests.served import Served


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_has_the_policy_and_no_script_of_its_own(coordinator: Served, path: str) -> None:
    shown = coordinator.http().get(path)
    policy = shown.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert shown.headers["x-content-type-options"] == "nosniff"
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", shown.text, re.DOTALL)
    assert scripts
    for attributes, content in scripts:
        source = re.search(r'src="([^"]+)"', attributes)
        assert source is not None
        assert content == ""
        assert coordinator.http().get(source[1]).headers["content-type"].startswith("text/javascript")


def test_answers_with_a_new_secret_are_not_stored(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    asked = {"client_name": "a"}
    answers = [
        coordinator.admin.post("/v1/tokens", json={"role": "auditor", "name": "x"}),
        coordinator.admin.post(f"/v1/federations/{federation_id}/enrolment-tokens", json=asked),
    ]
    answers.append(coordinator.try_enrol(answers[1].json()["token"], "a"))
    assert [answer.status_code for answer in answers] == [201] * 3
    assert {answer.headers["cache-control"] for answer in answers} == {"no-store"}
