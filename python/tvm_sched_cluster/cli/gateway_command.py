"""The command ``gateway``: the server of ``serve``, before pipelines."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tvm_sched_runtime.run_artifact import exit_status
from tvm_sched_serve.command import add_server_options, serve_models

_ABOUT = """Serve pipelines to clients of the Open Inference Protocol (Triton's, KServe's), over HTTP and gRPC. NAME is a
deployment on a Ray cluster (`tvm-sched deploy`); clients need a bearer token and not Ray. Any number of gateways may stand
before a deployment, on any node. PLAN is a deployment file or the folder of a pipeline artifact, which then runs in this
process."""


def main(arguments: Sequence[str], program: str = "tvm-sched gateway") -> int:
    """Run the command; return its exit status: 0, 1 for a failure, 2 for wrong input."""
    options = make_parser(program).parse_args(list(arguments))
    return exit_status(lambda: _serve(options))


def _serve(options: argparse.Namespace) -> None:
    from ..serving.gateway_models import GatewayModels, pipelines_of

    pipelines = pipelines_of(options.pipelines, options.address)
    serve_models(options, lambda on_change: GatewayModels(pipelines, on_change))


def make_parser(program: str) -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=_ABOUT,
        epilog=f"Examples: {program} googlenet --address 10.0.0.1:6379 --host 10.0.0.2 --token-file tokens | "
        f"{program} googlenet.toml",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("pipelines", nargs="+", metavar="NAME|PLAN...", help="deployments, or what runs here")
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="of the Ray cluster; without it: RAY_ADDRESS, else one on this machine"
    )
    add_server_options(parser)
    return parser
