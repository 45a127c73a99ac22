"""``tvm-sched cache``: list and clear what is cached on disk."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.markup import escape

from ..blob_cache import choice_cache, kernel_cache
from ..file_cache import compiled_cache
from ..files import cache_directory
from .output import Output
from .registration import command

app = typer.Typer(
    name="cache", help="What was compiled and measured before, on disk.", no_args_is_help=True, rich_markup_mode="rich"
)


@command(app, "show", ("tvm-sched cache show", "tvm-sched cache show --json"))
def show(out: Output) -> None:
    """List compiled models, and how many kernels and measurements are kept."""
    from ..cost_model.database import Database
    from ..report.tables import table
    from ..report.units import format_bytes

    cache = compiled_cache()
    entries = cache.entries()
    kernels, choices = kernel_cache(), choice_cache()
    (kernel_count, kernel_bytes), (choice_count, choice_bytes) = kernels.contents(), choices.contents()
    database = Database()
    size = database.size()
    rows = [
        (str(entry.about.get("model", "?")), format_bytes(entry.size), _ago(entry.used), entry.key[:12])
        for entry in entries
    ]
    used = sum(entry.size for entry in entries)
    if rows:
        out.show("Compiled models", table(("model", "size", "last used", "key"), rows))
    out.show(
        escape(str(cache_directory())),
        table(
            ("what", "size", "limit"),
            [
                (f"{len(entries)} compiled models", format_bytes(used), format_bytes(cache.limit)),
                (f"{kernel_count:,} compiled kernels", format_bytes(kernel_bytes), format_bytes(kernels.limit)),
                (f"{choice_count:,} measured choices", format_bytes(choice_bytes), format_bytes(choices.limit)),
                ("measured kernels", format_bytes(size), f"{database.entries:,} kernels"),
            ],
        ),
    )
    models = [
        {"key": e.key, "model": e.about.get("model"), "bytes": e.size, "last_used": round(e.used)} for e in entries
    ]
    out.result(
        {
            "path": str(cache_directory()),
            "compiled": models,
            "compiled_bytes": used,
            "limit_bytes": cache.limit,
            "kernels": kernel_count,
            "kernels_bytes": kernel_bytes,
            "choices": choice_count,
            "choices_bytes": choice_bytes,
            "measurements_bytes": size,
        }
    )


@command(app, "clear", ("tvm-sched cache clear", "tvm-sched cache clear --measurements"))
def clear(
    out: Output,
    measurements: Annotated[
        bool, typer.Option("--measurements", help="Also forget the measured times of kernels.")
    ] = False,
) -> None:
    """Remove all cached models and kernels, and the schedules that were chosen by measuring."""
    from ..cost_model.database import Database

    count, kernels = compiled_cache().clear(), kernel_cache().contents()[0]
    kernel_cache().clear()
    choice_cache().clear()
    forgotten = measurements and Database().clear()
    out.say(
        f"{count} compiled models and {kernels} compiled kernels removed{', measurements forgotten' if forgotten else ''}"
    )
    out.result({"compiled_removed": count, "kernels_removed": kernels, "measurements_removed": forgotten})


@command(app, "path", ("tvm-sched cache path",))
def path(out: Output) -> None:
    """Print the folder; the environment variable TVM_SCHED_CACHE names another."""
    out.show(escape(str(cache_directory())))
    out.result({"path": str(cache_directory())})


def _ago(used: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(used))
