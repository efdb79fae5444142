"""SQLite files on network file systems are refused before a write."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.db import single_process
from coordinator.db.engine import Database
from coordinator.db.single_process import file_system_of, only_replica
from coordinator.errors import SettingsUnusable

MOUNTS = """\
22 1 0:21 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:40 / /data rw,relatime shared:1 - nfs4 filer:/data rw,vers=4.2
31 30 0:41 / /data/local rw - xfs /dev/sdb1 rw
32 22 0:42 / /with\\040blank rw - cifs //filer/share rw
33 22 0:43 / /twice rw - nfs filer:/twice rw
34 22 0:44 / /twice rw - ext4 /dev/sdc1 rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/tessera.db", "ext4"),
        ("/data/tessera.db", "nfs4"),
        ("/database/tessera.db", "ext4"),
        ("/data/local/tessera.db", "xfs"),
        ("/with blank/tessera.db", "cifs"),
        ("/twice/tessera.db", "ext4"),
    ],
)
def test_the_innermost_and_latest_mount_counts(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


def test_mounts_of_this_machine_are_readable(tmp_path: Path) -> None:
    assert file_system_of(tmp_path, Path("/proc/self/mountinfo").read_text("utf-8")) not in (None, "nfs")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'none' / 'tessera.db'}")
    with pytest.raises(SettingsUnusable, match=r"no folder .*none; create it"), only_replica(database):
        raise AssertionError("it serves")
    database.close()


@pytest.mark.parametrize("kind", ["nfs4", "fuse.glusterfs", "smb3"])
def test_sqlite_on_a_network_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"22 1 0:21 / / rw - ext4 /dev/sda1 rw\n23 22 0:22 / {tmp_path} rw - {kind} filer:/x rw\n"
    )
    monkeypatch.setattr(single_process, "_MOUNTS", mounts)
    database = Database(f"sqlite:///{tmp_path / 'tessera.db'}")
    with (
        pytest.raises(SettingsUnusable, match=rf"network file system \({kind}\).*PostgreSQL"),
        only_replica(database),
    ):
        raise AssertionError("it serves")
    assert [path.name for path in tmp_path.iterdir()] == ["mountinfo"]
    database.close()
