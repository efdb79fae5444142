"""`tessera` without the seconds that importing torch takes: a process imports once, and forks every command.

Each command has a process of its own, runs through the program's entry point, and has the arguments, folder,
environment and standard streams of its client, a program of a few lines that forwards signals to it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from studies.coordinator_process import quiet_environment

_CLIENT = """\
import json, os, signal, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({path!r})
request = json.dumps({{"argv": sys.argv[1:], "cwd": os.getcwd(), "environment": dict(os.environ)}})
socket.send_fds(connection, [b"x"], [0, 1, 2])
connection.sendall(request.encode() + b"\\n")
answers = connection.makefile()
process = int(answers.readline() or sys.exit("tessera: the process that starts its commands has ended"))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(process, number))
sys.exit(int(answers.readline() or 1))
"""


@contextmanager
def preloaded() -> Iterator[tuple[str, ...]]:
    """Yield the command that stands for `tessera`. It can be used at once; it waits for the imports."""
    with TemporaryDirectory(prefix="tessera-") as folder, socket.socket(socket.AF_UNIX) as listening:
        path = Path(folder) / "socket"
        listening.bind(str(path))
        listening.listen(64)
        client = Path(folder) / "client.py"
        client.write_text(_CLIENT.format(path=str(path)))
        # Its own session: Ctrl-C reaches the commands through their clients only, once.
        with subprocess.Popen(
            [sys.executable, "-m", "examples.preloaded", str(listening.fileno())],
            stdin=subprocess.PIPE,
            env=quiet_environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"),
            pass_fds=[listening.fileno()],
            start_new_session=True,
        ):  # its standard input ends with the block, or with this process, and the server with it
            listening.close()
            yield (sys.executable, "-I", "-S", str(client))


def main() -> None:
    """Serve the listening socket that the first argument numbers until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        _import()
        while True:
            ready, _, _ = select.select([listening, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _run(connection)
            connection.close()


def _import() -> None:
    """Import what the agent's commands import, as far as a process that did so can be forked."""
    import torch

    import schemas.command  # noqa: F401

    if torch.version.cuda is not None:
        return  # further imports ask for the GPU, which a forked process then cannot use
    import transformers  # noqa: F401

    from client_agent.adapters.peft_folder import light_peft

    with light_peft():
        import peft  # noqa: F401

    import client_agent.daemon
    import client_agent.training.silo  # noqa: F401
    import coordinator.cli  # noqa: F401


def _run(connection: socket.socket) -> None:
    """Run one command in this process, and end it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    request = json.loads(connection.makefile().readline())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = ["tessera", *request["argv"]]
    connection.sendall(f"{os.getpid()}\n".encode())
    status = 1
    try:
        from schemas.command import main as tessera

        tessera()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(f"{status}\n".encode())
        os._exit(status)


if __name__ == "__main__":
    main()
