"""The output folder of the demo, where foreign files and earlier demos stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from client_agent import AgentSettings
from examples.agents import make_room, may_be_emptied
from examples.demo.__main__ import main as demo
from examples.demo.cast import Cast
from examples.demo_tiny.__main__ import main as demo_tiny
from examples.demo_tiny.silos import MODELS


@pytest.mark.parametrize("main", [demo, demo_tiny])
@pytest.mark.parametrize("beside", ["notes", "coordinator", "silos"])  # the last two a demo makes too
def test_a_folder_with_foreign_files_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    beside: str,
    main: Callable[[], int],
) -> None:
    (tmp_path / beside).mkdir()
    (tmp_path / "thesis.txt").write_text("years of work")
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
    assert "no earlier demo's" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_earlier_demo_is_kept_under_another_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    for number in range(3):
        make_room(out)
        assert may_be_emptied(out)
        (out / "adapter").write_text(str(number))
    names = ("demo.1", "demo.2", "demo")
    assert [(tmp_path / name / "adapter").read_text() for name in names] == ["0", "1", "2"]
    assert f"The earlier demo's folder is now {tmp_path / 'demo.1'};" in capsys.readouterr().out


def test_silo_files_work_in_a_renamed_folder(tmp_path: Path) -> None:
    (tmp_path / "smollm2").symlink_to(MODELS["S"])
    cast = Cast.of(tmp_path, seed=0)
    data, silo = tmp_path / "demo" / "data", tmp_path / "demo" / "federated" / "elmford"
    cast.write_data(data)
    cast.write_config("elmford", data, silo, "http://127.0.0.1:1")
    (tmp_path / "demo").rename(tmp_path / "demo.1")
    settings = AgentSettings.from_toml(tmp_path / "demo.1" / "federated" / "elmford" / "silo.toml")
    assert Path(settings.train).is_file()
    assert settings.test is not None
    assert Path(settings.test).is_file()


@pytest.mark.slow
def test_interrupted_demo_says_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "smollm2").symlink_to(MODELS["S"])
    words = ["--quick", "--models", str(tmp_path / "models"), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    while "load the model, and enrol" not in process.stdout.readline():
        assert process.poll() is None
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.stderr.readline() == "stopping ...\n"
    assert time.monotonic() - began < 3
    _, complaints = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "Traceback" not in complaints
