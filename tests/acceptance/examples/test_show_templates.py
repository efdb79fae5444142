"""The example that shows the task templates of a folder of data sets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from client_agent.data.templates import template_names
from examples.show_templates import main
from tests.scene.real_rows import ROWS, write_folders


def test_data_sets_of_a_folder_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, models = write_folders(tmp_path)
    words = ["show_templates", str(data), "--model", str(models / "smollm2"), "--examples", "1"]
    monkeypatch.setattr(sys, "argv", words)
    main()
    printed = capsys.readouterr().out
    names = [name for name in template_names() if name in ROWS]
    assert [line[6:] for line in printed.splitlines() if line.startswith("=====")] == names
    assert printed.count("»") == 2 * len(names)  # one example each, and the legend
    monkeypatch.setattr(sys, "argv", ["show_templates", str(tmp_path / "none"), "--model", "x"])
    with pytest.raises(SystemExit, match="no folder named as a task template"):
        main()
