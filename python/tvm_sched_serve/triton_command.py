"""The command ``export-triton`` of ``tvm-sched`` and ``tvm-sched-run``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tvm_sched_runtime.run_artifact import exit_status

from .command import seconds, whole


def main(arguments: Sequence[str], program: str = "tvm-sched export-triton") -> int:
    """Run the command; return its exit status: 0, or 2 for wrong input."""
    options = make_parser(program).parse_args(list(arguments))
    return exit_status(lambda: _export(options))


def _export(options: argparse.Namespace) -> None:
    from .served_model import NOT_JOINED
    from .triton_export import TritonOptions, export_triton

    delay = None if options.batch_delay is None else 1e-3 * options.batch_delay
    folders = [Path(folder) for folder in (options.libraries or "").split(":") if folder]
    chosen = TritonOptions(options.instances, options.threads, delay, options.backend, folders)
    written = export_triton(options.artifact, options.output, chosen)
    if options.json:
        print(json.dumps({"models": [asdict(model) for model in written]}))
        return
    for model in written:
        batch = f", batches up to {model.max_batch_size}" if model.max_batch_size else ""
        if delay is not None and not model.max_batch_size:
            batch = f"; requests are not joined: {NOT_JOINED}"
        print(f"{options.output / model.name}: versions {', '.join(model.versions)}{batch}")


def make_parser(program: str) -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="""Write compiled models as a repository of Triton Inference Server. The server's machine needs
tvm-sched-runtime.""",
        epilog=f"Example: {program} model.so -o repository/ --instances 2 --batch-delay 2",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("artifact", type=Path, metavar="MODEL.so|FOLDER", help="as for `tvm-sched serve`")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="Triton's model repository")
    parser.add_argument(
        "--backend", choices=("python", "cpp"), default="python", metavar="python|cpp",
        help="what runs models: Triton's Python backend, in processes of its own, or a library in the model's folder",
    )  # fmt: skip
    parser.add_argument(
        "--libraries", metavar="FOLDER[:FOLDER]",
        help="of the runtime's libraries on the server's machine, for --backend cpp; default: those of this environment",
    )  # fmt: skip
    parser.add_argument("--instances", type=whole(1, 1024), default=1, metavar="N", help="runs of a model at once")
    parser.add_argument("--threads", type=whole(1, 4096), metavar="N", help="threads of a run's CPU devices together")
    parser.add_argument(
        "--batch-delay", type=seconds(0), metavar="MS",
        help="join requests to the batches that the artifact takes; milliseconds that one may wait for others",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print what was written as one JSON line")
    return parser
