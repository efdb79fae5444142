"""Pages in a browser: no framing, no foreign script, no stored secrets."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import version
from importlib.resources import files

import pytest
from pydantic import ValidationError

from coordinator.settings import Settings
from tests.scene.coordinator import Served


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_has_the_policy_without_inline_scripts(coordinator: Served, path: str) -> None:
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


def test_footer_has_the_version_and_the_documentation(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    url = "https://docs.example.org/?a=1&b=2"
    served = serve(fresh_database("sqlite"), documentation_url=url)
    footer = served.http().get("/").text.partition("<footer>")[2]
    assert f"Tessera {version('tessera-fl')} " in footer
    assert '<a href="https://docs.example.org/?a=1&amp;b=2" rel="noreferrer">Documentation</a>' in footer


@pytest.mark.parametrize("url", ["javascript:alert(1)", "docs.example.org", "data:text/html,x"])
def test_documentation_is_a_web_address(url: str) -> None:
    with pytest.raises(ValidationError, match="not an http"):
        Settings(_env_file=None, documentation_url=url)


def test_footer_has_no_link_without_a_documentation(coordinator: Served) -> None:
    footer = coordinator.http().get("/").text.partition("<footer>")[2]
    assert "Documentation" not in footer
    assert "<!--" not in footer


def test_the_modules_of_the_page_are_served(coordinator: Served) -> None:
    http, folder = coordinator.http(), files("coordinator.dashboard")
    modules = [file.name for file in folder.iterdir() if file.name.endswith(".js")]
    assert len(modules) > 10
    for name in modules:
        shown = http.get(f"/{name}")
        assert shown.status_code == 200, name
        for imported in re.findall(r'from "\./([^"]+)"', shown.text):
            assert imported in modules, f"{name} imports {imported}"


def test_answers_with_a_new_secret_are_not_stored(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    request = {"client_name": "a"}
    answers = [
        coordinator.admin.post("/v1/tokens", json={"role": "auditor", "name": "x"}),
        coordinator.admin.post(f"/v1/federations/{federation_id}/enrolment-tokens", json=request),
    ]
    answers.append(coordinator.try_enrol(answers[1].json()["token"], "a"))
    assert [answer.status_code for answer in answers] == [201] * 3
    assert {answer.headers["cache-control"] for answer in answers} == {"no-store"}
