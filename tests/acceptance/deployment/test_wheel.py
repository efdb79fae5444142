"""The built distribution: its content, its installation in an empty environment, and a run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.acceptance.deployment.composition import ROOT

PACKAGES = ("schemas", "coordinator", "client_agent", "studies", "migrations")
TOKEN = "tsr_adm_of_the_packaging_test"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build sdist and wheel as `make dist` does, from what git knows and nothing else."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    _checked([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)], source)
    return folder


@pytest.mark.slow
def test_the_wheel_contains_all_packages_without_tests(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    shipped = [path for path in shipped if "__pycache__" not in path.parts]
    assert {path.relative_to(ROOT).as_posix() for path in shipped} <= names
    unexpected = {name.partition("/")[0] for name in names} - set(PACKAGES)
    assert unexpected == {"tessera_fl-0.2.0.dist-info"}
    assert "tessera_fl-0.2.0.dist-info/licenses/LICENSE" in names


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    (wheel,) = built.glob("*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path)]
    _checked(command, source)
    (again,) = tmp_path.glob("*.whl")
    assert set(zipfile.ZipFile(again).namelist()) == set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_a_bare_environment_with_the_wheel_serves(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    environment = tmp_path / "venv"
    _checked([sys.executable, "-m", "venv", str(environment)], tmp_path)
    python = str(environment / "bin" / "python")
    _checked([python, "-m", "pip", "install", "--quiet", "--no-compile", f"{wheel}[coordinator]"], tmp_path)
    tessera = str(environment / "bin" / "tessera")
    assert _checked([tessera, "--version"], tmp_path) == "tessera 0.2.0\n"
    with _serving(tessera, tmp_path) as url:
        assert httpx.get(f"{url}/healthz").status_code == 200
        assert "<html" in httpx.get(url).text
        command = [tessera, "federation", "create", "--name", "clinics", "--strategy", "fedmosaic"]
        created = _checked([*command, "--url", url, "--token", TOKEN, "--json"], tmp_path)
        assert json.loads(created)["name"] == "clinics"


@pytest.mark.slow
def test_the_wheel_runs_a_quickstart_without_a_clone(built: Path, tmp_path: Path) -> None:
    """Code, model and data are the wheel's; libraries are this environment's, as torch is large."""
    (wheel,) = built.glob("*.whl")
    environment = tmp_path / "venv"
    _checked([sys.executable, "-m", "venv", str(environment)], tmp_path)
    python = str(environment / "bin" / "python")
    _checked([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", str(wheel)], tmp_path)
    (site_packages,) = environment.glob("lib/python3*/site-packages")
    # A path in a .pth file is searched last, and .pth files in it, such as ours of this clone, are not read.
    (site_packages / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    place = _checked([python, "-c", "import studies.quickstart as q; print(q.__file__)"], tmp_path)
    assert place.startswith(str(site_packages))
    printed = _checked([str(environment / "bin" / "tessera"), "quickstart", "--no-keep"], tmp_path)
    assert re.search(r"north +│( +\d\.\d{3} │){4}", printed), printed
    assert (tmp_path / "tessera-quickstart" / "north" / "state").is_dir()


def _checked(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _environment() -> dict[str, str]:
    """Return this process' variables without those that would let our sources be imported from here."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


@contextmanager
def _serving(tessera: str, folder: Path) -> Iterator[str]:
    settings = {"TESSERA_PORT": "0", "TESSERA_ADMIN_TOKEN": TOKEN}
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [tessera, "serve"], cwd=folder, env={**_environment(), **settings}, stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + 60
        while not (listening := re.search(r"listens on (http://\S+)", log.read_text("utf-8"))):
            assert process.poll() is None, log.read_text("utf-8")
            assert time.monotonic() < deadline, log.read_text("utf-8")
            time.sleep(0.1)
        yield listening[1]
    finally:
        process.terminate()
        process.wait(30)
