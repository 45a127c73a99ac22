"""Runs commands of ``tvm-sched`` for the pages of documents without importing TVM for each of them anew.

``python command_server.py SOCKET`` imports what the commands import, and forks a process for each call. The program that
`write_client` makes stands for ``tvm-sched`` on a page: it hands on its arguments, folder, environment and open files,
and ends as the forked process does. ``tests/cli/test_process.py`` starts the real program.
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

CLIENT = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)])
socket.send_fds(server, [call.encode()], [0, 1, 2])
status = int(server.recv(64) or 1)
sys.exit(status if status >= 0 else 128 - status)
"""


@contextlib.contextmanager
def started():
    """A server; gives the address at which it listens."""
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / "socket")
        command = [sys.executable, __file__, address]
        package = str(Path(__file__).parents[2] / "python")
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": package}
        ) as server:
            assert server.stdout.readline() == b"ready\n"
            yield address
            server.stdin.close()


def write_client(tool, address):
    """Write a program that has the server at an address run ``tvm-sched``."""
    tool.write_text(CLIENT.format(python=sys.executable, address=address))
    tool.chmod(0o755)


def preload():
    """Import what most commands import, as they do: without PyTorch."""
    import onnx  # noqa: F401
    import onnxscript.optimizer  # noqa: F401
    import plotly.offline  # noqa: F401

    from tvm_sched._library import without_torch

    with without_torch():
        import tvm  # noqa: F401

        import tvm_sched.cli
        import tvm_sched.plans
        import tvm_sched.relax.importers.onnx
        import tvm_sched.report.cluster
        import tvm_sched.report.html
        import tvm_sched.report.pipeline  # noqa: F401


def serve(address):
    """Wait for calls until standard input ends; comes back in each process that is to run one, with its arguments."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(address)
        server.listen()
        print("ready", flush=True)
        while True:
            waiting, _, _ = select.select([server, sys.stdin], [], [])
            if sys.stdin in waiting:
                sys.exit()
            call, _ = server.accept()
            if os.fork() == 0:
                return answer(call)
            call.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def answer(call):
    """Fork the process that works, and tell the client how it ended; comes back in that process alone."""
    content, files, _, _ = socket.recv_fds(call, 1 << 20, 3)
    arguments, folder, environment = json.loads(content)
    if (worker := os.fork()) != 0:
        for file in files:
            os.close(file)
        status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        with contextlib.suppress(OSError):  # the client is gone
            call.send(str(status).encode())
        os._exit(0)
    call.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, closefd=False) for n, mode in enumerate("rww"))
    return arguments


if __name__ == "__main__":
    preload()
    sys.argv = ["tvm-sched", *serve(sys.argv[1])]
    from tvm_sched.cli import main

    main()
