"""Register functions as commands: options, examples, results and exit statuses."""

from __future__ import annotations

import atexit
import errno
import gc
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import typer
from rich.markup import escape
from typer.core import TyperCommand
from typer.main import get_command_from_info
from typer.models import CommandInfo

from tvm_sched_runtime.errors import InputError, TvmSchedError
from tvm_sched_runtime.standard_output import discard_output

from .attached_commands import AttachedCommands
from .child_process import CRASHES, can_fork, fork_child
from .inputs import check_files
from .interrupt import watch
from .option_groups import group_parameters, parameters_of
from .output import BAD_INPUT, FAILURE, INTERRUPTED, Debug, Json, Output
from .schema import RESULTS, ResultType

T = TypeVar("T")
_WRONG_NAMES = {errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP}
"""Errors of the system that mean a wrong file name from the user."""
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class CommonOptions:
    """Options of every command."""

    json: Json = False
    debug: Debug = False


COMMON = group_parameters(CommonOptions)


class LateCommand(TyperCommand):
    """A command that makes its parameters at first use: importing their types may take long."""

    make: Callable[[], TyperCommand]
    apart: bool
    _made = False

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments; a command that works apart does so in its child process."""
        _begin(self.apart)
        _or_end(self._complete)
        return _or_end(lambda: super(LateCommand, self).make_context(*args, **kwargs))

    @property
    def params(self) -> Any:
        """The options and arguments."""
        self._complete()
        return self._params

    @params.setter
    def params(self, listed: Any) -> None:
        self._params = listed

    def _complete(self) -> None:
        if not self._made and hasattr(self, "callback"):  # else the constructor is at work
            self._made = True
            complete = type(self).make()
            self._params, self.callback, self.no_args_is_help = (
                complete.params,
                complete.callback,
                complete.no_args_is_help,
            )


def command_group(name: str, text: str) -> typer.Typer:
    """Return a group of commands, which prints its help if no command is named."""
    return typer.Typer(name=name, help=text, no_args_is_help=True, rich_markup_mode="rich")


app = typer.Typer(
    cls=AttachedCommands,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The program ``tvm-sched``."""


def command(
    app: typer.Typer, name: str, result: ResultType = (), panel: str | None = None, apart: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function ``(out: Output, ...)`` as a command with ``--json`` and ``--debug``.

    Its help is the function's docstring, in which lines that begin with ``$`` are examples. A parameter that is a group
    (`option_groups`) becomes the options of the group. The function's exceptions become exit statuses: 2 for bad input, 1
    for a failure, 130 for Ctrl-C.

    Parameters
    ----------
    result : str or tuple of str
        Types of what the command prints with ``--json``, as ``"module:Type"``; several if it depends on the input.
    panel : str, optional
        Where ``tvm-sched --help`` lists the command.
    apart : bool
        Whether the command works in a child process. A crash of the child becomes status 2.
    """
    full_name = f"{app.info.name} {name}" if isinstance(app.info.name, str) else name
    if result:
        RESULTS[full_name] = result

    def add(function: Callable[..., None]) -> Callable[..., None]:
        def make() -> Any:
            parameters = parameters_of(function, COMMON)

            def run(*, json: bool, debug: bool, **arguments: Any) -> None:
                out = Output(json)
                try:
                    check_files(parameters.listed, arguments)
                    # Libraries of commands print on standard output at any time.
                    with redirect_stdout(sys.stderr):
                        function(out, **parameters.collect(arguments))
                    out.finish()
                except (Exception, KeyboardInterrupt) as error:
                    _end(out, error, debug)

            run.__name__ = function.__name__
            run.__signature__ = inspect.Signature(parameters.listed)  # type: ignore[attr-defined]
            run.__annotations__ = {p.name: p.annotation for p in parameters.listed}
            needs_arguments = any(p.default is inspect.Parameter.empty for p in parameters.listed)
            info = CommandInfo(name, callback=run, no_args_is_help=needs_arguments)
            return get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode="rich")

        late = type("LateCommand", (LateCommand,), {"make": staticmethod(make), "apart": apart})
        lines = (inspect.getdoc(function) or "").splitlines()
        text = "\n".join(line for line in lines if not line.startswith("$ "))
        examples = [line[2:] for line in lines if line.startswith("$ ")]
        app.command(name, cls=late, help=text, epilog=epilog(examples), rich_help_panel=panel)(lambda: None)
        return function

    return add


def own_process() -> None:
    """Let the command fork, handle Ctrl-C and collect cycles seldom: the process runs nothing else.

    Importing TVM and PyTorch makes a million objects that stay. Searching them for garbage again and again takes a fifth
    of a compilation, and the last search, when the process ends, half a second.
    """
    global _own_process
    _own_process = True
    gc.set_threshold(100_000, 50, 50)
    atexit.register(gc.freeze)


_own_process = False


def _begin(apart: bool) -> None:
    """Continue in a child process if ``apart``; the parent then ends with the child's status."""
    if not _own_process:
        return
    if apart and can_fork():
        status = fork_child()
        if status is not None:
            _end_as_child(Output(), status)
    watch()


def _or_end(work: Callable[[], T]) -> T:
    """Return what the work returns, or end the process with its error's message, or that of Ctrl-C."""
    try:
        return work()
    except TvmSchedError as error:
        _end(Output(), error, debug=False)
    except (RuntimeError, ImportError, KeyboardInterrupt) as error:
        if not _is_interrupt(error):
            raise
        _end(Output(), error, debug=False)


def _end_as_child(out: Output, status: int) -> NoReturn:
    if os.WIFEXITED(status):
        raise typer.Exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name
    out.aside.show_cursor(True)
    doing = f" during {out.note.read()!r}" if out.note.read() else ""
    if number in CRASHES:
        out.say(
            f"error: the compiler crashed ({name}){doing}, so it cannot take this model; try another export of it (another "
            "opset, other shapes), and please report it with the model"
        )
        raise typer.Exit(BAD_INPUT)
    why = ", as the system does where memory is short" if name == "SIGKILL" else ""
    out.say(f"error: ended by {name}{doing}{why}")
    raise typer.Exit(FAILURE)


def epilog(examples: Iterable[str]) -> str:
    """Return the examples under a command's help."""
    lines = [f"[dim]$[/dim] {escape(example)}" for example in examples]
    return "\n\n".join(["[bold]Examples[/bold]", *lines])


def _end(out: Output, error: BaseException, debug: bool) -> NoReturn:
    """Turn an exception into a message on standard error and an exit status."""
    if isinstance(error, typer.Exit):
        raise error
    if type(error).__module__.startswith(("click.", "typer.")) and hasattr(error, "exit_code"):
        raise error  # a usage error: typer shows it with the command's usage
    if isinstance(error, BrokenPipeError):
        discard_output()  # the reader closed the pipe
        raise typer.Exit(FAILURE)
    if debug:
        traceback.print_exception(error)
    if _is_interrupt(error):
        out.interrupted()
        raise typer.Exit(INTERRUPTED)
    out.say(f"error: {_message(error, debug)}")
    if isinstance(error, OSError):
        discard_output()
    if not debug:
        _silence_stderr()
    named_wrongly = isinstance(error, OSError) and error.filename is not None and error.errno in _WRONG_NAMES
    raise typer.Exit(BAD_INPUT if isinstance(error, InputError) or named_wrongly else FAILURE)


def _is_interrupt(error: BaseException) -> bool:
    """Whether an error is Ctrl-C, or came of one, as where it reaches an import of a library, or the making of a class."""
    if isinstance(error, TvmSchedError):
        return False  # told as such, whatever came before
    causes: BaseException | None = error
    while causes is not None and not isinstance(causes, KeyboardInterrupt):
        causes = causes.__cause__ or causes.__context__
    return causes is not None


def _message(error: BaseException, debug: bool) -> str:
    if isinstance(error, TvmSchedError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror or error}"
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"standard output, or a file that was being written: {error.strerror}"
    text = " ".join(str(error).split()) or "no message"
    text = text if len(text) <= 400 else text[:400] + " ..."
    return f"{type(error).__name__}: {text}{'' if debug else ' (--debug shows the traceback)'}"


def _silence_stderr() -> None:
    """Print nothing after an error message: destructors of unfinished work in TVM print warnings from C++."""
    if _own_process:
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
