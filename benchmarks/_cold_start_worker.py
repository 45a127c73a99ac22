"""One start of an engine: load a model, run it once, print when the first output was there.

    python _cold_start_worker.py ENGINE MODEL INPUTS.npz OUTPUT.npy [CACHE]

Prints a JSON object: ``first_output_ns`` by the monotonic clock, and for ours stages and the timeline of the first run.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def ours(model: Path, inputs: Any) -> tuple[Any, Any]:
    """Load our artifact and run it."""
    from tvm_sched_runtime import runtime

    module = runtime.load(model)
    module.configure(trace=True)
    return module.run(*inputs().values()), module


def text(model: Path, inputs: Any) -> tuple[Any, Any]:
    """Load our language model and generate a token."""
    from tvm_sched_language import Generator, Sampling

    generator = Generator(model)
    generator.module.configure(trace=True)
    prompt = inputs()["tokens"].tolist()
    (token,) = generator.stream(prompt, max_tokens=1, sampling=Sampling(), stop=())
    return [[token.id]], generator.module


def llama(model: Path, inputs: Any) -> tuple[Any, Any]:
    """Load a GGUF file by llama.cpp, which maps it, and generate a token."""
    import os

    import xllamacpp

    answers = os.dup(1)
    os.dup2(2, 1)  # what the library prints
    given = xllamacpp.CommonParams()
    given.model.path, given.n_ctx, given.n_parallel, given.warmup = str(model), 256, 1, False
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = os.cpu_count()
    asked = {"prompt": inputs()["tokens"].tolist(), "n_predict": 1, "temperature": 0}
    answer = xllamacpp.Server(given).handle_completions(asked)
    os.dup2(answers, 1)
    answer = json.loads(answer) if isinstance(answer, str) else answer
    if answer["usage"]["completion_tokens"] != 1:
        raise SystemExit(f"not one token: {answer}")
    return [[1]], None


def onnxruntime(model: Path, inputs: Any) -> tuple[Any, Any]:
    """Load the ONNX file."""
    import onnxruntime as engine

    session = engine.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session.run(None, inputs()), None


def openvino(model: Path, inputs: Any, cache: str = "") -> tuple[Any, Any]:
    """Load the ONNX file, or what an earlier start left in the cache."""
    import openvino as engine

    core = engine.Core()
    if cache:
        core.set_property({"CACHE_DIR": cache})
    request = core.compile_model(str(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    request.infer(inputs())
    return [request.get_output_tensor(0).data], None


def torch(model: Path, inputs: Any) -> tuple[Any, Any]:
    """Load the safetensors file of a chain of products, and multiply."""
    import torch as engine
    from safetensors.torch import load_file

    weights = load_file(model)
    (value,) = inputs().values()
    value = engine.from_numpy(value)
    for name in sorted(weights):
        value = engine.relu(value @ weights[name])
    return [value.numpy()], None


def main() -> None:
    """Start the engine that the arguments name."""
    engine, model, given, output, *rest = sys.argv[1:]

    def inputs() -> Any:
        import numpy as np

        with np.load(given) as opened:
            return {name: opened[name] for name in opened.files}

    outputs, module = globals()[engine](Path(model), inputs, *rest)
    answer: dict[str, Any] = {"first_output_ns": time.monotonic_ns()}
    import numpy as np

    np.save(output, outputs[0])
    if module is not None:
        answer |= {"stages": module.stages(), "timeline": module.timeline()}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
