"""The command ``tvm-sched-run``: run an artifact with the runtime's distribution alone.

``tvm-sched run`` also shows plan, timeline and trace.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .errors import InputError, TvmSchedError
from .standard_output import discard_output, written_out

if TYPE_CHECKING:
    from .runtime.values import Array

_BAD_INPUT, _FAILURE, _INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0, 1 for a run that failed, 2 for wrong input."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return written_out(lambda: exit_status(lambda: _main(given)))


def _main(arguments: list[str]) -> int:
    if arguments[:1] in (["serve"], ["export-triton"]):
        return _attached(arguments[0], arguments[1:])
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    if arguments[:1] == ["generate"]:
        _generate(arguments[1:])
    else:
        _run(_parser().parse_args(arguments))
    return 0


def exit_status(run: Callable[[], int | None]) -> int:
    """Run a command; print its error, and return its exit status, by default 0."""
    try:
        return run() or 0
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return _BAD_INPUT
    except TvmSchedError as error:
        print(f"error: {error}", file=sys.stderr)
        return _FAILURE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # as by `| head`
        discard_output()
        return _FAILURE


def _attached(name: str, arguments: list[str]) -> int:
    """Run a command of `tvm_sched_serve`; ``serve`` needs the packages of the extra ``serve``."""
    module = {"serve": "command", "export-triton": "triton_command"}[name]
    command = importlib.import_module(f"tvm_sched_serve.{module}")
    return int(command.main(arguments, f"tvm-sched-run {name}"))


def _generate(arguments: list[str]) -> None:
    """Run ``tvm-sched-run generate``."""
    try:
        command = importlib.import_module("tvm_sched_language.command")
    except ModuleNotFoundError:
        raise InputError(
            "generate is part of tvm-sched-language, which is not installed: pip install 'tvm-sched-runtime[generate]'"
        ) from None
    command.main(arguments, "tvm-sched-run generate")


def add_verify(parser: argparse._ActionsContainer) -> None:
    """Add ``--verify``; its value is ``verify`` of `tvm_sched_runtime.load`."""
    parser.add_argument(
        "--verify",
        action="store_const",
        const=True,
        help="compare the parameter file with its checksum first, whatever its size",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tvm-sched-run",
        description="Run and measure what `tvm-sched compile` (.so) or `tvm-sched pipeline --artifact` (a folder) wrote. "
        "`tvm-sched-run serve` serves artifacts to clients, `tvm-sched-run export-triton` writes artifacts for Triton, and "
        "`tvm-sched-run generate` generates text with language models.",
    )
    parser.add_argument("artifact", type=Path, metavar="ARTIFACT")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy|FILE.npz",
        help="value of an input, or of several; may be repeated; others are random",
    )
    parser.add_argument(
        "--shape",
        action="append",
        metavar="NAME:DIMS|SYMBOL=SIZE",
        help="shape of an input that gets random values, or size of an open dimension, e.g. ids:1,40 or tokens=40; may be "
        "repeated",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random inputs (default: 0)")
    parser.add_argument("--repeat", type=int, default=10, metavar="N", help="runs that are measured (default: 10)")
    parser.add_argument("--warm-up", type=int, default=2, metavar="N", help="runs before them (default: 2)")
    parser.add_argument(
        "--parameter-file", dest="parameters", type=Path, metavar="FILE", help="safetensors file of the parameters"
    )
    add_verify(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="threads of all CPU devices together")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="write the last outputs there, as output_0.npy, ..."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--version", action="version", version=f"tvm-sched-runtime {__version__}")
    return parser


def _run(options: argparse.Namespace) -> None:
    if options.repeat < 1 or options.warm_up < 0 or options.seed < 0:
        raise InputError(
            f"--repeat {options.repeat} --warm-up {options.warm_up} --seed {options.seed}: at least 1, 0 and 0 are allowed"
        )
    from .runtime.values import read_inputs, save_outputs

    run = _run_pipeline if options.artifact.is_dir() else _run_module
    result, outputs = run(options, read_inputs(options.input))
    if options.output is not None:
        save_outputs(options.output, outputs)
    names = result.pop("output_names", None) or [f"output_{n}" for n in range(len(outputs))]
    result["outputs"] = [
        {"name": name, "shape": list(value.shape), "dtype": value.dtype.name}
        for name, value in zip(names, outputs, strict=True)
    ]
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, seconds in result["latency_seconds"].items():
        print(f"{name:10} {1e3 * seconds:.3f} ms")
    for value in result["outputs"]:
        print(f"{value['name']:10} {value['shape']} {value['dtype']}")


def _run_module(options: argparse.Namespace, inputs: dict[str, Array]) -> tuple[dict[str, Any], list[Array]]:
    """Measure the latency of an artifact with one schedule, by the executor's clock."""
    from .input_shapes import one_shape, parse_shapes
    from .runtime import load
    from .runtime.parameters import require_parameters
    from .runtime.values import choose_inputs

    shapes = one_shape(parse_shapes(options.shape), "a run has one")
    module = load(options.artifact, options.parameters, threads=options.threads, verify=options.verify)
    require_parameters(options.artifact, module.parameters())
    values = choose_inputs(module.plans(), inputs, options.seed, module.template, shapes)
    measured = asdict(module.benchmark(*values, warmup=options.warm_up, repeat=options.repeat))
    repeat, names = measured.pop("repeat"), [output["name"] for output in module.outputs()]
    outputs = module.run(*values)
    result = {"repeat": repeat, "latency_seconds": measured, "output_names": names, "stages": module.stages()}
    return result, outputs


def _run_pipeline(options: argparse.Namespace, inputs: dict[str, Array]) -> tuple[dict[str, Any], list[Array]]:
    """Measure the time between results of batches that follow each other without a pause."""
    from .pipeline import load
    from .runtime.values import choose_inputs

    if options.parameters or options.threads is not None or options.shape:
        raise InputError(
            f"{options.artifact} is a pipeline; --parameter-file, --threads and --shape are for artifacts of one schedule"
        )
    pipeline = load(options.artifact)
    batch = choose_inputs([{"arguments": pipeline.arguments()}], inputs, options.seed)
    if options.warm_up:
        pipeline.run([batch] * options.warm_up)
    results, ran = pipeline.trace([batch] * options.repeat)
    result = {
        "repeat": options.repeat, "latency_seconds": {"batch": 1e-9 * ran.steady_ns},
        "output_names": list(pipeline.output_names),
    }  # fmt: skip
    return result, results[-1].value()


if __name__ == "__main__":
    sys.exit(main())
