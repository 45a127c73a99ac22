"""CPU seconds of `tvm-sched compile`: with an empty cache, again, and with the cache switched off.

Processor time of the command and its children is counted, not the clock: it hardly depends on what else the machine does.
Run it on models of your own, or without arguments on three that are made here (a convolutional network, an encoder, and a
decoder of 128 tokens):

    python benchmarks/compile_time.py [-t cpu1] [--json FILE] [MODEL.onnx[:NAME:1,3,320,320] ...]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path


def make_models(folder: Path) -> list[str]:
    """Models with random parameters, exported by PyTorch in a process of its own."""
    code = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, MobileNetV2Config, MobileNetV2ForImageClassification
from transformers import ViTConfig, ViTModel
class Plain(torch.nn.Module):  # a tensor instead of a class of transformers
    def __init__(self, model):
        super().__init__()
        self.model = model
    def forward(self, value):
        return self.model(value)[0]
torch.manual_seed(0)
image, tokens = torch.zeros(1, 3, 224, 224), torch.zeros(1, 128, dtype=torch.int64)
for name, model, value in (
    ("mobilenet_v2", MobileNetV2ForImageClassification(MobileNetV2Config()), image),
    ("vit_base", ViTModel(ViTConfig()), image),
    ("gpt2", GPT2LMHeadModel(GPT2Config(use_cache=False)), tokens),
):
    torch.export.save(torch.export.export(Plain(model).eval(), (value,)), f"{sys.argv[1]}/{name}.pt2")
"""
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, capture_output=True)
    return [str(path) for path in sorted(folder.glob("*.pt2"))]


def cpu_seconds(model: str, topology: str, folder: Path, *options: str) -> tuple[float, int]:
    """Of one compilation, and the size of the artifact in bytes."""
    path, _, shape = model.partition(":")
    given = ["--input-shape", shape] if shape else []
    output = folder / "compiled.so"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable,
        "-m",
        "tvm_sched.cli",
        "compile",
        path,
        "-t",
        topology,
        "-o",
        str(output),
        *given,
        *options,
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TVM_SCHED_CACHE": str(folder / "cache")},
    )
    if done.returncode:
        raise SystemExit(f"{model}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    size = sum(file.stat().st_size for file in folder.glob("compiled.*"))
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL[:NAME:SHAPE]")
    parser.add_argument("-t", "--topology", default="cpu1")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--quick", action="store_true", help="the first model alone")
    given = parser.parse_args()
    os.environ.pop("TVM_SCHED_NO_CACHE", None)
    rows = []
    with tempfile.TemporaryDirectory() as made:
        models = given.models or make_models(Path(made))
        for model in models[:1] if given.quick else models:
            with tempfile.TemporaryDirectory() as folder:
                cold, size = cpu_seconds(model, given.topology, Path(folder))
                warm, _ = cpu_seconds(model, given.topology, Path(folder))
                without, _ = cpu_seconds(model, given.topology, Path(folder), "--no-cache")
            name = Path(model.partition(":")[0]).stem
            rows.append({"model": name, "cold": cold, "warm": warm, "without": without, "bytes": size})
            print(
                f"{name:32s} cold {cold:6.2f} s  warm {warm:6.2f} s  {cold / warm:5.1f} times  "
                f"no cache {without:6.2f} s  {size / 2**20:7.1f} MiB",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps({"topology": given.topology, "cpu_seconds": rows}, indent=2))


if __name__ == "__main__":
    main()
