"""Real agents in processes of their own, on the tiny models of the examples."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = {"S": EXAMPLES / "models" / "tiny-s", "L": EXAMPLES / "models" / "tiny-l"}
TESSERA = str(Path(sys.executable).parent / "tessera")


@dataclass
class AgentProcess:
    """`tessera agent run` for one silo; it can be killed and started again."""

    name: str
    folder: Path
    token: str
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again."""
        variables = {"TESSERA_AGENT_TOKEN": self.token, "TESSERA_AGENT_NAME": self.name}
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [TESSERA, "agent", "run", "--config", str(self.folder / "silo.toml")],
                stdout=log,
                stderr=log,
                env=environment() | variables,
            )

    def kill(self) -> None:
        """Kill the process, as in a power failure."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=30)

    def wait(self, seconds: float = 180) -> None:
        """Wait until the process exits with status 0."""
        assert self.process is not None
        assert self.process.wait(timeout=seconds) == 0, self.log

    @property
    def log(self) -> str:
        """The logged lines."""
        return (self.folder / "agent.log").read_text()

    def read(self, round_number: int, name: str) -> bytes:
        """Return the stored result of a step; fail if it is missing."""
        file = self.file(round_number, name)
        assert file is not None, self.log
        return file.read_bytes()

    def file(self, round_number: int, name: str) -> Path | None:
        """Find a step's result of a round."""
        return next((self.folder / "state").glob(f"*/rounds/{round_number:06d}/{name}"), None)


def prepare_agent(
    folder: Path, name: str, url: str, token: str, *, model: str = "S", silo: str | None = None
) -> AgentProcess:
    """Write a silo's configuration."""
    agent_folder = folder / name
    agent_folder.mkdir()
    data = EXAMPLES / "silos" / (silo or name)
    (agent_folder / "silo.toml").write_text(
        f'url = "{url}"\nfolder = "state"\nmodel = "{MODELS[model]}"\npivot_model = "{MODELS["S"]}"\n'
        f'train = "{data / "train.jsonl"}"\ntest = "{data / "test.jsonl"}"\nthreads = 1\n'
    )
    return AgentProcess(name, agent_folder, token)


def environment() -> dict[str, str]:
    """Leave out what would configure another agent, or send loopback through a proxy."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    return variables | {"NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def tessera(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the installed program to its end."""
    return subprocess.run(
        [TESSERA, *map(str, arguments)],
        env=environment() | variables,
        input="",
        capture_output=True,
        text=True,
        check=False,
    )
