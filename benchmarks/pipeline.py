"""Emulated pipelines of real models: time between batches that ran, against the plan's simulation and its cost."""

from __future__ import annotations

from collections.abc import Iterator

from _common import Row, parser, report

BATCHES = 32


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument(
        "--model", action="append", metavar="NAME", help="of the package onnx; may stand several times"
    )
    given = arguments.parse_args()
    models = given.model or (["squeezenet"] if given.quick else ["squeezenet", "inception_v1", "densenet121"])
    rows = [row for name in models for row in _rows(name)]
    report("Pipelines, emulated", rows, given.json, given.markdown, predicted=True)


def _rows(name: str) -> Iterator[Row]:
    """Stages on four and on eight GPUs."""
    import numpy as np

    from tvm_sched.relax import compile_pipeline
    from tvm_sched.testing.models import input_shape, onnx_model

    model = onnx_model(name)
    shape = input_shape(model)[1]
    for topology in ("v100-server", "p4d"):
        compiled = compile_pipeline(model, topology, "auto", "slicegraph", emulate_values=False)
        _, run = compiled.trace([np.zeros(shape, np.float32)] * BATCHES)
        predicted = compiled.predict(BATCHES).steady_ns
        case = f"{name} on {topology}"
        method = f"{len(compiled.plan.stages)} stages"
        yield Row(case, method, run.steady_ns / 1e3, "µs a batch, ran", predicted / 1e3, "simulated")
        yield Row(case, method, 100 * (run.steady_ns / predicted - 1), "error, %")
        yield Row(case, method, compiled.plan.cost_ns / 1e3, "cost (no overlap), µs")
        yield Row(case, method, compiled.plan.latency_ns / 1e3, "latency, µs")


if __name__ == "__main__":
    main()
