"""The generated pages of docs/reference: equal to their source, and complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generate.commands import commands
from docs.generate.errors import problems
from docs.generate.markdown import linked, sentence, table
from docs.generate.pages import GENERATED, ON_SITE
from docs.generate.remedies import REMEDIES

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    stored = (REFERENCE / name).read_text("utf-8")
    assert stored == GENERATED[name](), f"docs/reference/{name} is stale; run `make reference`"


def test_problems_and_remedies_are_the_same() -> None:
    assert REMEDIES.keys() == problems().keys()


def test_commands_and_options_have_help() -> None:
    silent = [
        f"{command.name} {parameter.name}"
        for command in commands()
        for parameter in command.described.params
        if not getattr(parameter, "help", None)
    ]
    assert not silent
    assert all(command.described.help for command in commands())


@pytest.mark.parametrize("name", ["settings.md", "plan.md", "http-api.md", "metrics.md"])
def test_rows_of_generated_tables_have_a_meaning(name: str) -> None:
    rows = [line for line in {**GENERATED, **ON_SITE}[name]().splitlines() if re.match(r"\| `", line)]
    assert rows
    assert not [row for row in rows if row.endswith("|  |")]


def test_a_cell_cannot_break_its_table() -> None:
    assert table(("a",), [("x | y\nz",)]).splitlines()[-1] == "| x \\| y z |"


def test_descriptions_link_documents_and_show_angle_brackets() -> None:
    assert linked("see docs/decisions/0024, a <b> and `<c>`") == (
        "see [0024](../decisions/0024-corrected-ca-pfl.md), a &lt;b> and `<c>`"
    )
    with pytest.raises(FileNotFoundError, match="correct the name"):
        linked("docs/explanation/nothing.md")


def test_a_phrase_becomes_a_sentence() -> None:
    assert sentence("port to listen on") == "Port to listen on."
    assert sentence("`auto`, or cpu") == "`auto`, or cpu."
