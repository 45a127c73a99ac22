"""Networks of torchvision and transformers on one GPU: our artifact beside PyTorch, step by step and as CUDA graphs.

Prints Markdown. Needs an NVIDIA GPU, nvcc, cuBLASLt and cuDNN, and PyTorch with CUDA, torchvision and transformers. All
weights are random; batch 1; inputs and parameters lie on the GPU. Times are the caller's, from the call to the moment when
the results are known to be there: medians of rows of runs that take turns. Precision is float32 without TF32, for both.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _gpu import EAGER, GRAPH, Run, medians, torch_runs

WAYS: dict[str, dict[str, Any]] = {
    "ours": {"streams": "one"},
    "ours, streams by Opara": {"streams": "opara", "launch_order": "opara"},
    "ours, best streams": {"streams": "best", "launch_order": "best"},
}


def networks(torch: Any) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Return functions that make a module and its input, by name."""

    def image(name: str, size: int = 224, **options: Any) -> Callable[[], tuple[Any, Any]]:
        def make() -> tuple[Any, Any]:
            import torchvision

            module = getattr(torchvision.models, name)(weights=None, **options)
            _spread(torch, module, torch.randn(4, 3, size, size))
            return module, torch.randn(1, 3, size, size)

        return make

    def bert() -> tuple[Any, Any]:
        import transformers

        config = transformers.BertConfig(attn_implementation="sdpa")
        model = transformers.BertModel(config, add_pooling_layer=False)

        class Encoder(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, x: Any) -> Any:
                return self.model.encoder(x).last_hidden_state

        return Encoder(), torch.randn(1, 128, config.hidden_size)

    plain = {"init_weights": False, "aux_logits": False}
    return {
        "squeezenet1_1": image("squeezenet1_1"),
        "resnet50": image("resnet50"),
        "googlenet": image("googlenet", **plain),
        "inception_v3": image("inception_v3", 299, **plain),
        "mobilenet_v3_large": image("mobilenet_v3_large"),
        "vit_b_16": image("vit_b_16"),
        "BERT-base encoder, 128 tokens": bert,
    }


def _spread(torch: Any, module: Any, values: Any) -> None:
    """Give a network with random weights outputs that depend on its inputs: statistics of its own, no weights of 0."""
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = 1.0
        if isinstance(part, torch.nn.Linear) and not part.weight.any():
            torch.nn.init.normal_(part.weight, std=0.02)
    with torch.no_grad():
        module.train()(values)


def our_runs(
    torch: Any, module: Any, value: Any, topology: str, folder: Path
) -> tuple[dict[str, Run], dict[str, Any], float]:
    """Compile an artifact for each choice of streams; return the runs, the numbers of kernels, and the largest error."""
    from tvm_sched.problem import load_topology
    from tvm_sched.relax import compile
    from tvm_sched.runtime import load

    exported = torch.export.export(module, (value,))
    with torch.no_grad():
        expected = module(value).numpy()
    runs: dict[str, Run] = {}
    predicted: dict[str, Any] = {}
    worst, given = 0.0, value.cuda()
    for name, options in WAYS.items():
        file = folder / "model.so"
        made = compile(exported, load_topology(topology), "single", backend="cuda", **options)
        made.export(file)
        loaded = load(str(file))
        loaded.configure(resident=1.0, graph=True)
        for _ in range(3):
            (found,) = loaded.run(given)
        values = found.cpu().numpy()
        if not (np.isfinite(values).all() and np.ptp(expected) > 0):
            raise ValueError("outputs that say nothing: all equal, or not finite")
        worst = max(worst, float(np.abs(values - expected).max() / np.abs(expected).max()))
        runs[name] = lambda loaded=loaded: loaded.run(given)
        info = loaded.plans()[0]
        predicted[name] = {"kernels": sum(step["kind"] == "kernel" for step in info["steps"])}
    return runs, predicted, worst


def main() -> None:
    """Measure and print."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", required=True, metavar="FILE", help="of one GPU, by `tvm-sched topology detect`")
    parser.add_argument("--only", nargs="+", metavar="NETWORK", help="instead of all")
    parser.add_argument("--repeat", type=int, default=200, metavar="N", help="runs of each way")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, after each network")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, PyTorch {torch.__version__}; microseconds\n")
    names = [EAGER, GRAPH, *WAYS]
    print("| network | " + " | ".join(names) + " | kernels | error |\n|---|" + "---:|" * (len(names) + 2), flush=True)
    rows: dict[str, Any] = {}
    for network, make in networks(torch).items():
        if arguments.only and network not in arguments.only:
            continue
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode(False), torch.no_grad():
            module, value = make()
            module = module.eval()
            try:
                ours, found, error = our_runs(torch, module, value, arguments.topology, Path(folder))
                times = medians({**torch_runs(torch, module, value), **ours}, arguments.repeat)
            except Exception as failure:  # a page with one network less says more than none
                print(f"| {network} | {type(failure).__name__}: {' '.join(str(failure).split())[:150]} |", flush=True)
                continue
        rows[network] = {"times": times, "error": error, **found["ours"]}
        cells = [f"{times[name]:.0f}" for name in names]
        print(f"| {network} | {' | '.join(cells)} | {found['ours']['kernels']} | {error:.1e} |", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
