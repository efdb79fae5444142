"""`tessera` without the seconds that it takes to import torch: a server forks a process for each command.

    python -m tests.docs.preloaded SOCKET

A command sends its arguments, folder, environment and standard streams, and gets a process id and an exit
status. Each command still runs in a process of its own, through the program's entry point.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

CLIENT = """\
import json, os, signal, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({path!r})
request = json.dumps({{"argv": sys.argv[1:], "cwd": os.getcwd(), "environment": dict(os.environ)}})
socket.send_fds(connection, [b"x"], [0, 1, 2])
connection.sendall(request.encode() + b"\\n")
answers = connection.makefile()
process = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(process, number))
sys.exit(int(answers.readline() or 1))
"""
"""The program that stands for `tessera`; it has no module to import but these."""


def main() -> None:
    """Serve until the standard input ends."""
    import peft  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401

    import client_agent.training.silo  # noqa: F401
    import coordinator.cli  # noqa: F401

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen(16)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        print("ready", flush=True)
        while True:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _run(connection)
            connection.close()


def _run(connection: socket.socket) -> None:
    """Run one command in this process, and end it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    request = json.loads(connection.makefile().readline())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
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


def write_client(folder: Path, path: str) -> None:
    """Write the program `tessera`: `serve` and `compare` by themselves, all else through the server."""
    client = folder / "client.py"
    client.write_text(CLIENT.format(path=path))
    program = folder / "tessera"
    code = "import sys; sys.argv[0] = 'tessera'; from schemas.command import main; main()"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f'serve|compare) exec "{sys.executable}" -c "{code}" "$@";;\n'
        f'*) exec "{sys.executable}" -I -S "{client}" "$@";;\n'
        "esac\n"
    )
    program.chmod(0o755)
    for name in ("pip", "pip3"):  # pages install nothing in the environment of the tests
        (folder / name).write_text("#!/bin/sh\necho 'tests of pages install nothing' >&2\nexit 1\n")
        (folder / name).chmod(0o755)


if __name__ == "__main__":
    main()
