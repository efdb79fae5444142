"""`tessera quickstart`: its folder, data and model, a whole run, and how it ends at once."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from filecmp import cmp
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_agent.training.data import load_data
from examples.demo_tiny.silos import MODELS
from examples.tasks import TASKS
from schemas.command import application
from schemas.messages.federations import FederationPlan
from schemas.user_files import FileUnusable
from studies import page_link
from studies.coordinator_process import TESSERA
from studies.earlier_folder import set_aside
from studies.quickstart import command, folder
from studies.quickstart.folder import SILOS, QuickstartFolder

_TOKEN = re.compile(r"tsr_[a-z]+_\w+")


def test_shipped_model_is_the_tiny_example_model() -> None:
    """After `make models`, copy the files of examples/models/tiny-s to studies/quickstart/model."""
    shipped = Path(folder.__file__).parent / "model"
    assert {file.name for file in shipped.iterdir()} > {"config.json", "model.safetensors", "tokenizer.json"}
    assert all(cmp(file, MODELS["S"] / file.name, shallow=False) for file in shipped.iterdir())


def test_silos_have_rows_of_one_task_that_differ(tmp_path: Path) -> None:
    quickstart = QuickstartFolder.create(tmp_path / "first")
    rows: list[str] = []
    letters: list[set[str]] = []
    for silo in SILOS:
        data = load_data(quickstart.path / silo, validation_share=0)
        assert (len(data.train), len(data.test)) == (8, folder.HELD_OUT)
        for example in [*data.train, *data.test]:
            letters_asked = example.prompt.removeprefix("CIPHER ").removesuffix("=")
            assert example.completion == TASKS["cipher"].answer(letters_asked)
        rows += [example.prompt for example in [*data.train, *data.test]]
        letters.append({letter for example in data.train for letter in example.prompt[7:-1]})
    assert len(set(rows)) == len(rows)
    assert [len(alphabet) for alphabet in letters] == [13, 13]
    assert len(letters[0] | letters[1]) == 16


def test_plan_is_one_that_a_coordinator_accepts() -> None:
    plan = FederationPlan.model_validate(folder.plan())
    assert (plan.rounds.total, plan.rounds.min_clients) == (3, 2)
    assert plan.adapter.kind == "lora"


def test_earlier_folders_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "quickstart"
    for number in range(3):
        folder = QuickstartFolder.create(path)
        (path / "mine").write_text(str(number))
    assert folder.earlier == tmp_path / "quickstart.2"
    names = ("quickstart.1", "quickstart.2", "quickstart")
    assert [(tmp_path / name / "mine").read_text() for name in names] == ["0", "1", "2"]


@pytest.mark.parametrize("is_file", [True, False])
def test_foreign_folder_or_file_is_refused(tmp_path: Path, is_file: bool) -> None:
    path = tmp_path / "thesis"
    if is_file:
        path.write_text("years of work")
    else:
        path.mkdir()
        (path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileUnusable, match="not a folder of an earlier quickstart; pass the name of a new"):
        QuickstartFolder.create(path)
    assert (path if is_file else path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(("terminal", "shown"), [(True, "http://c/#token=tsr_aud_x"), (False, "http://c/ (")])
def test_link_has_the_token_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: str
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    link = page_link.page_link("http://c", "tsr_aud_x", Path("page-token"))
    assert link.startswith(shown)
    assert terminal == ("tsr_" in link)


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "torch" else object())
    done = CliRunner().invoke(application("quickstart"), ["quickstart", "--out", str(tmp_path / "new")])
    assert done.exit_code == 1
    assert "the extra agent is not installed; in a clone of Tessera, run pip install" in done.stderr
    assert not (tmp_path / "new").exists()


def test_quickstart_help_and_folder_need_no_torch(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from typer.testing import CliRunner
from schemas.command import application
assert CliRunner().invoke(application("quickstart"), ["quickstart", "--help"]).exit_code == 0
light = set(sys.modules)
import studies.quickstart.play
from studies.quickstart.folder import QuickstartFolder
QuickstartFolder.create(Path({str(tmp_path / "new")!r}))
print({{"torch", "transformers", "httpx", "numpy"}} & light, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set() False\n"


def _start(path: Path, *options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*TESSERA, "quickstart", "--out", str(path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


@pytest.mark.slow
def test_whole_run_shows_losses_and_hides_tokens(tmp_path: Path) -> None:
    path = tmp_path / "first"
    process = _start(path, "--no-keep")
    printed, complaints = process.communicate(timeout=250)
    assert process.returncode == 0, printed + complaints
    for silo in SILOS:
        row = next(line for line in printed.splitlines() if f" {silo} " in line and "│" in line)
        base, _, _, final = map(float, re.findall(r"\d\.\d{3}", row))
        assert final < base / 2
        scores = json.loads(next(path.glob(f"{silo}/state/fed_*/final_scores.json")).read_text())
        assert f"{scores['scores']['loss']['value']:.3f}" in row
    assert "in 2 of 2 silos" in printed
    assert not complaints
    assert not _TOKEN.search(printed)
    token = (path / page_link.TOKEN_FILE).read_text().strip()
    assert (path / page_link.TOKEN_FILE).stat().st_mode & 0o077 == 0
    assert token.startswith("tsr_aud_")
    logs = [path / "coordinator" / "coordinator.log", *path.glob("*/agent.log")]
    assert len(logs) == 3
    assert not any(token in log.read_text() for log in logs)
    for word in ("agent generate", "agent export", "tessera serve --port"):
        assert word in printed


@pytest.mark.slow
@pytest.mark.parametrize("awaited", ["coordinator starts", "load PyTorch|not there yet"])
def test_interrupt_is_answered_at_once(tmp_path: Path, awaited: str) -> None:
    path = tmp_path / "first"
    process = _start(path)
    assert process.stdout is not None
    assert process.stderr is not None
    while not re.search(awaited, process.stdout.readline()):
        assert process.poll() is None
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "stopping ...\n"
    assert time.monotonic() - start < 2
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not _processes_with(str(path))


def _processes_with(text: str) -> list[str]:
    """Return the command lines of running processes that have a text."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return [line for line in lines if text in line]


def test_a_running_folder_is_not_renamed(tmp_path: Path) -> None:
    lock = tmp_path / "quickstart/coordinator/tessera.db-serving"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(FileUnusable, match="has not ended; end it with Ctrl-C"):
            set_aside(tmp_path / "quickstart")
    assert set_aside(tmp_path / "quickstart") == tmp_path / "quickstart.1"
