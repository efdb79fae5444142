"""The content of the images, by the Dockerfile and the metadata of the installed packages."""

from __future__ import annotations

import re

import pytest

from tests.acceptance.deployment.composition import BUILT_SERVICES, ROOT, SERVICES, Stage, dockerfile
from tests.acceptance.deployment.lock_files import pins

TARGETS = ("coordinator", "agent", "caddy")
HEAVY = {"torch", "transformers", "peft", "bitsandbytes"}


def test_build_targets_of_compose_exist() -> None:
    assert {SERVICES[name]["build"]["target"] for name in BUILT_SERVICES} == set(TARGETS)
    assert set(TARGETS) <= set(dockerfile())


@pytest.mark.parametrize("target", TARGETS)
def test_images_run_without_root_and_shell(target: str) -> None:
    stage = dockerfile()[target]
    words = [word for word, _ in stage.instructions]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", stage.last("USER") or "")
    assert "USER" not in words[: words.index("USER")]
    assert stage.argv("ENTRYPOINT")
    stage.argv("CMD")
    for word in ("ADD", "SHELL"):
        assert word not in words


@pytest.mark.parametrize("target", ["coordinator", "agent"])
def test_final_stages_have_no_build_and_no_secret(target: str) -> None:
    stage = dockerfile()[target]
    assert not any(
        "pip" in arguments or "apt" in arguments for word, arguments in stage.instructions if word == "RUN"
    )
    copied = [arguments for word, arguments in stage.instructions if word == "COPY"]
    assert copied == [f"--from={target}-installed /opt/tessera /opt/tessera"]
    assert "title" in "".join(arguments for word, arguments in stage.instructions if word == "LABEL")
    named = [arguments for word, arguments in stage.instructions if word in ("ARG", "ENV")]
    assert not re.search("(?i)token|password|secret", " ".join(named))


def test_images_of_others_are_pinned_to_a_release() -> None:
    """PostgreSQL's releases have two numbers."""
    stages = dockerfile()
    outside = {stage.base for stage in stages.values()} - set(stages)
    assert len(outside) == 2
    assert all(re.search(r":\d+\.\d+\.\d+-", base) for base in outside), outside
    (pulled,) = {service["image"] for service in SERVICES.values() if "build" not in service}
    assert re.fullmatch(r"postgres:\d+\.\d+-bookworm", pulled)


def test_dependencies_are_installed_before_the_code() -> None:
    """A layer is made anew when what it copies changes: code must not come before the slow layer."""
    for target in ("coordinator-installed", "agent-installed"):
        instructions = dockerfile()[target].instructions
        copied = [arguments for word, arguments in instructions if word == "COPY"]
        assert copied == ["requirements requirements", "--from=wheel /wheels /wheels"]
        code = instructions.index(("COPY", copied[1]))
        assert all("-r requirements" not in arguments for _, arguments in instructions[code:])


def test_downloads_have_known_hashes() -> None:
    """pip itself demands it, but for our own wheel, which comes from the stage that built it and no index."""
    for target in ("wheel", "coordinator-installed", "agent-installed"):
        stage = dockerfile()[target]
        assert stage.environment["PIP_REQUIRE_HASHES"] == "1"
        installed = [
            arguments for word, arguments in stage.instructions if word == "RUN" and "pip " in arguments
        ]
        assert installed
        for command in installed:
            assert ("-r requirements/" in command) != ("PIP_REQUIRE_HASHES=0" in command)
            assert ("PIP_REQUIRE_HASHES=0" in command) == ("--no-index" in command)


def test_the_coordinators_image_has_no_torch() -> None:
    installed = _installed_by(dockerfile()["coordinator-installed"])
    assert {"fastapi", "sqlalchemy", "psycopg", "httpx"} <= installed
    assert not HEAVY & installed


def test_the_agents_image_has_torch_and_no_server() -> None:
    installed = _installed_by(dockerfile()["agent-installed"])
    assert installed >= HEAVY
    assert not {"fastapi", "sqlalchemy", "psycopg"} & installed


def test_the_build_context_is_exactly_the_copied_files() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    assert lines[0] == "*"
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        source
        for stage in dockerfile().values()
        for word, arguments in stage.instructions
        if word == "COPY" and "--from" not in arguments
        for source in arguments.split()[:-1]
    }
    assert allowed == copied
    assert all((ROOT / source).exists() for source in copied)


def test_the_wheel_stage_copies_all_packages() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packages = {p.rstrip("*") for p in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    copied = [
        source
        for word, arguments in dockerfile()["wheel"].instructions
        if word == "COPY"
        for source in arguments.split()[:-1]
    ]
    assert packages | {"requirements", "pyproject.toml", "README.md", "LICENSE"} == set(copied)


def _installed_by(stage: Stage) -> set[str]:
    """Return the names in the lock files that a stage installs from."""
    commands = " ".join(arguments for word, arguments in stage.instructions if word == "RUN")
    files = re.findall(r"-r (requirements/[\w.]+)", commands)
    assert files
    return {pin.name for file in files for pin in pins(ROOT / file)}
