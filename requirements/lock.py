"""Rewrite the lock files beside this one from pyproject.toml: exact versions, hashes, and no index's address.

One resolution serves every supported Python and platform. PyTorch publishes a CPU build that needs no CUDA
libraries; these are therefore kept apart, in cuda.txt. `all.txt` is everything, for any package index.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
PYPROJECT = HERE.parent / "pyproject.toml"
TRACKERS = ("tensorboard", "mlflow", "wandb", "trackio")
FILES = {
    "dev.txt": (
        "coordinator",
        "postgres",
        "oidc",
        "otel",
        "object-store",
        "agent",
        "data",
        "ray",
        "report",
        "docs",
        "dev",
        *TRACKERS,
    ),
    "coordinator.txt": ("coordinator", "postgres", "oidc", "otel", "object-store"),
    "agent.txt": ("agent", "data"),
    "fuzz.txt": ("fuzz",),
    "charts.txt": ("charts",),
}
# Tests start this server as a process of an environment of its own: boto3 needs an older python-dateutil.
S3_SERVER = ("moto[s3]>=5.1,<6", "flask>=3,<4", "flask-cors>=6,<7")
CUDA = re.compile(r"(nvidia-|cuda-|triton==)")
HEADER = "# Written by `make lock` from pyproject.toml.\n"

# The CPU build is not on the default index, so the resolver does not see its hashes. Those of another version
# are in the `#sha256=` of the links to torch on PyTorch's index of CPU builds.
CPU_BUILD = "2.13.0"
CPU_BUILD_HASHES = (
    "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",  # Python 3.11, x86_64
    "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",  # Python 3.11, aarch64
    "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",  # Python 3.12, x86_64
    "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604",  # Python 3.12, aarch64
    "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",  # Python 3.13, x86_64
    "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",  # Python 3.13, aarch64
)


def main() -> None:
    """Resolve everything together once, then each file under the versions of that resolution."""
    with TemporaryDirectory() as folder:
        together = Path(folder) / "together.txt"
        extras = sorted({extra for names in FILES.values() for extra in names})
        entries = _resolved(PYPROJECT, together, *_options(extras))
        build = Path(folder) / "build.in"
        build.write_text("\n".join(tomllib.loads(PYPROJECT.read_text("utf-8"))["build-system"]["requires"]))
        constrained = ("--constraints", str(together))
        _write("build.txt", _resolved(build, Path(folder) / "build.txt", *constrained))
        for name, names in FILES.items():
            resolved = _resolved(PYPROJECT, Path(folder) / name, *_options(names), *constrained)
            _write(name, [entry for entry in resolved if not CUDA.match(entry)])
        alone = Path(folder) / "s3.in"
        alone.write_text("\n".join(S3_SERVER))
        _write("s3.txt", _resolved(alone, Path(folder) / "s3.txt"))
        _write("uv.txt", [entry for entry in entries if entry.startswith("uv==")])
        _write("torch.txt", [entry for entry in entries if entry.startswith("torch==")])
        _write("torch-cpu.txt", [_with_hashes(f"torch=={CPU_BUILD}+cpu", CPU_BUILD_HASHES)])
        _write("cuda.txt", [entry for entry in entries if CUDA.match(entry)])
        _write("all.txt", ["-r dev.txt\n", "-r cuda.txt\n"])


def _options(extras: list[str] | tuple[str, ...]) -> list[str]:
    return [f"--extra={extra}" for extra in extras]


def _resolved(source: Path, target: Path, *options: str) -> list[str]:
    """Run uv; return one entry per requirement, with its hashes."""
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--python-version=3.11",
    ]
    command += ["--generate-hashes", "--no-emit-index-url", "--no-header", "--no-annotate"]
    subprocess.run([*command, *options, str(source), "--output-file", str(target)], check=True)
    entries = re.split(r"^(?=\S)", target.read_text("utf-8"), flags=re.MULTILINE)
    return [_with_cpu_build(entry) for entry in entries if entry]


def _with_cpu_build(entry: str) -> str:
    if not entry.startswith("torch=="):
        return entry
    pin = entry.split()[0]
    if pin != f"torch=={CPU_BUILD}":
        raise SystemExit(f"{pin} is not {CPU_BUILD}: change CPU_BUILD and its hashes in {__file__}")
    return _with_hashes(entry.rstrip(), CPU_BUILD_HASHES)


def _with_hashes(entry: str, digests: tuple[str, ...]) -> str:
    return entry + "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests) + "\n"


def _write(name: str, entries: list[str]) -> None:
    (HERE / name).write_text(HEADER + "".join(entries), "utf-8")


if __name__ == "__main__":
    main()
