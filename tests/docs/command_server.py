"""Runs ``tvm-sched``, ``python -c`` and scripts without importing for each of them anew what all of them need.

``python command_server.py SOCKET commands`` (or ``plans``: what plans and runs them, without TVM; ``models``: what compiles
models of PyTorch) imports that, and forks a process for each call. The programs that `write_client` makes stand for
``tvm-sched`` and ``python`` on a page of documents: they hand on their arguments, folder, environment and open files, and
end as the forked process does. `run_script` and `run_code` are for tests that need a process of their own.
``tests/cli/test_process.py`` starts the real program.
"""

import atexit
import contextlib
import faulthandler
import functools
import gc
import marshal
import os
import runpy
import select
import socket
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path

PROGRAMS = ("tvm-sched", "python")
CLIENT = """#!{python} -IS
import os, sys
if {program!r} == "python" and sys.argv[1:2] != ["-c"]:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
import array, marshal, _socket  # `socket` and `json` take as long to import as this process takes without them
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
server.connect({address!r})
call = marshal.dumps([{program!r}, sys.argv[1:], os.getcwd(), dict(os.environ)])
server.sendmsg([call], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
status = int(server.recv(64) or 1)
sys.exit(status if status >= 0 else 128 - status)
"""


SECONDS = 100
"""What runs for longer in `run_script` hangs, and is ended; it says where. Thorough tests may take nine times as long."""


@contextlib.contextmanager
def started(what="commands", folders=(), variables=None):
    """A server that has imported what ``"commands"``, ``"plans"`` or ``"models"`` need; gives its address.

    It also imports from further folders, and has further environment variables: those that a process needs as it starts.
    """
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / "socket")
        command = [sys.executable, __file__, address, what]
        paths = os.pathsep.join(map(str, (*folders, Path(__file__).parents[2] / "python")))
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(variables or {}), "PYTHONPATH": paths},
        ) as server:
            assert server.stdout.readline() == b"ready\n"
            yield address
            server.stdin.close()


def write_client(tool, address):
    """Write a program that has the server at an address run the one of its name, which is one of `PROGRAMS`."""
    tool.write_text(CLIENT.format(python=sys.executable, address=address, program=tool.name))
    tool.chmod(0o755)


def run_script(address, script, arguments, environment):
    """Have a server run a script in a process of its own; its exit status, and what it said."""
    return _run(address, "script", [str(script), *map(str, arguments)], environment)


def run_code(address, code, arguments, environment):
    """Have a server run code as ``python -c`` does, in a process of its own; its exit status, and what it said."""
    return _run(address, "python", ["-c", code, *map(str, arguments)], environment)


def _run(address, program, arguments, environment):
    with tempfile.TemporaryFile("w+") as said, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        words = marshal.dumps([program, arguments, os.getcwd(), environment])
        with open(os.devnull) as nothing:
            socket.send_fds(server, [words], [nothing.fileno(), said.fileno(), said.fileno()])
        status = int(server.recv(64) or 1)
        said.seek(0)
        return status, said.read()


def preload(what):
    """Import what most of them import."""
    {"commands": preload_commands, "plans": preload_plans, "models": preload_models}[what]()


def preload_plans():
    """What plans and runs, without TVM and PyTorch."""
    import pytest  # noqa: F401

    import tvm_sched_bench.testing  # noqa: F401
    from tvm_sched_runtime.core_library import load_library

    load_library()


def preload_commands():
    """What commands import, without PyTorch as they do."""
    import onnx  # noqa: F401
    import onnxscript.optimizer  # noqa: F401
    import plotly.offline  # noqa: F401
    import scipy.optimize
    import scipy.sparse  # noqa: F401
    from ortools.math_opt.python import mathopt  # noqa: F401
    from pydantic import BeforeValidator, Field, TypeAdapter  # noqa: F401

    from tvm_sched_runtime.startup import without_torch

    with without_torch():
        import tvm  # noqa: F401

        import tvm_sched.cli
        import tvm_sched.pipeline
        import tvm_sched.relax.api
        import tvm_sched.relax.lower.kernel_libraries.onednn
        import tvm_sched.report.html
        import tvm_sched.report.pipeline_report
        import tvm_sched.schedulers  # noqa: F401


def preload_models():
    """What compiles models of PyTorch, in pytest; a model is exported, for that imports most of PyTorch and SymPy."""
    import anyio  # noqa: F401
    import hypothesis.strategies  # noqa: F401
    import pytest  # noqa: F401
    import scipy.linalg
    import scipy.optimize
    import scipy.sparse.csgraph  # noqa: F401

    with contextlib.suppress(ImportError):
        import torch

        import tvm_sched_bench.testing.branched  # noqa: F401

        torch.export.export(torch.nn.ReLU(), (torch.zeros(1),)).run_decompositions()


def serve(address):
    """Wait for calls until standard input ends; comes back in each process that is to run one, with its words."""
    running = {}  # of each process that works: what is readable when it ends, and what its client waits at
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(address)
        server.listen()
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([server, sys.stdin, *running], [], [])
            if sys.stdin in ready:
                sys.exit()
            for ended in running.keys() & ready:
                tell(*running.pop(ended))
                os.close(ended)
            if server in ready:
                call, _ = server.accept()
                content, files, _, _ = socket.recv_fds(call, 1 << 20, 3)
                if (worker := os.fork()) == 0:
                    call.close()
                    return become(files, *marshal.loads(content))
                for file in files:
                    os.close(file)
                running[os.pidfd_open(worker)] = worker, call


def tell(worker, call):
    """Tell a client how its process ended."""
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    with call, contextlib.suppress(OSError):  # the client may be gone
        call.send(str(status).encode())


def become(files, program, arguments, folder, environment):
    """Take over a client's open files, folder and environment; gives its words."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, closefd=False) for n, mode in enumerate("rww"))
    return [program, *arguments]


def as_main(code):
    """Run what stands behind ``python -c``, as the main module of this process."""
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    sys.path[0] = ""
    exec(compile(code, "<string>", "exec"), module.__dict__)


def run_script_file(path):
    """Run a script as the main module of this process, which ends when it takes too long."""
    repeats = os.environ.get("TVM_SCHED_THOROUGH", "") not in ("", "0")
    faulthandler.dump_traceback_later(SECONDS * 9 if repeats else SECONDS, exit=True)
    sys.path[0] = str(Path(path).parent)
    runpy.run_path(path, run_name="__main__")


def end_after(work):
    """Do some work and end this process as its interpreter would, but for taking all modules apart.

    That would write to most of the pages that this process has in common with the server: a fifth of a second.
    """
    try:
        work()
    except SystemExit as ended:
        status = ended.code
    except Exception:
        sys.excepthook(*sys.exc_info())
        status = 1
    else:
        status = 0
    if not isinstance(status, (int, type(None))):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status or 0)


if __name__ == "__main__":
    preload(sys.argv[2])
    gc.freeze()  # forked processes collect garbage without looking through what was imported, which would copy all of it
    sys.argv = serve(sys.argv[1])
    if sys.argv[0] == "script":
        sys.argv[:] = sys.argv[1:]
        run_script_file(sys.argv[0])  # ends as a process of its own does, by what drivers do at the end
    elif sys.argv[0] == "python":
        sys.argv[:] = sys.argv[1:]
        end_after(functools.partial(as_main, sys.argv.pop(1)))
    else:
        from tvm_sched.cli import main

        end_after(main)
