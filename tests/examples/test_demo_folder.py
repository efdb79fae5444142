"""Where the demo may write: nothing of anybody else's is deleted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.demo.__main__ import main as demo
from examples.demo_tiny.__main__ import main as demo_tiny


@pytest.mark.parametrize("main", [demo, demo_tiny])
@pytest.mark.parametrize("beside", ["notes", "coordinator", "silos"])  # the last two a demo makes too
def test_a_folder_with_somebodys_files_is_refused_and_left_alone(
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
