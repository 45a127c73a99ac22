"""``tvm-sched cache``: list and clear what is cached on disk."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from tvm_sched_runtime.files import cache_directory

from .output import Output
from .registration import command, command_group

app = command_group("cache", "What was compiled and measured before, on disk.")
HOME = ".report.disk_cache"


@command(app, "show", f"{HOME}:CacheSummary")
def show(out: Output) -> None:
    """List compiled models, and how many kernels and measurements are kept.

    $ tvm-sched cache show
    $ tvm-sched cache show --json
    """
    from ..report.disk_cache import cache_contents

    contents = cache_contents()
    out.show(*contents.tables())
    out.result(contents)


@command(app, "clear", f"{HOME}:ClearedCache")
def clear(
    out: Output,
    measurements: Annotated[
        bool, typer.Option("--measurements", help="Also forget the measured times of kernels.")
    ] = False,
) -> None:
    """Remove all cached models and kernels, and the schedules that were chosen by measuring.

    $ tvm-sched cache clear
    $ tvm-sched cache clear --measurements
    """
    from ..report.disk_cache import clear_caches

    done = clear_caches(measurements)
    forgotten = ", measurements forgotten" if done.measurements_removed else ""
    out.say(f"{done.compiled_removed} compiled models and {done.kernels_removed} compiled kernels removed{forgotten}")
    out.result(done)


@command(app, "path", f"{HOME}:CachePath")
def path(out: Output) -> None:
    """Print the folder; the environment variable TVM_SCHED_CACHE names another.

    $ tvm-sched cache path
    """
    from ..report.disk_cache import CachePath

    out.show(escape(str(cache_directory())))
    out.result(CachePath(str(cache_directory())))
