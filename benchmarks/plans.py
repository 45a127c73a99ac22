"""Plans for accelerate, vLLM, llama.cpp and PyTorch beside the runtimes' own splits: models of 7B to 70B parameters.

Each case is a model, a machine with equal or unequal GPUs, and a workload with its keys and values. All splits are priced by
the simulator at predicted latencies; nothing here ran on a GPU.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from _common import parser
from _result_page import Page, write_json

from tvm_sched.report.units import format_ns, format_spread
from tvm_sched_plans import RuntimePlan, TokenWorkload, get_runtime
from tvm_sched_plans.planner import make_plan, open_source
from tvm_sched_plans.runtimes import PlanRequest
from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import Topology, load_topology, parse_topology

# Data sheets: RTX 4090 (1008 GB/s; 82.6 and 165.2 TFLOP/s), RTX 3090 (936 GB/s; 35.6 and 71 TFLOP/s), RTX 3060
# (360 GB/s; 12.7 and 25.4 TFLOP/s), half precision with sums in single precision. PCIe 4.0 x16, and x8 for the last
# card; no peer access.
CARDS = """
format = "tvm_sched.topology"
version = 1
name = "cards"
host_memory = "128 GB"
peer_access = false
[[buses]]
names = ["pcie0", "pcie1"]
bandwidth = "25 GB/s"
latency = "10 us"
[[buses]]
names = ["pcie2"]
bandwidth = "12.5 GB/s"
latency = "10 us"
"""
for _name, _memory, _bandwidth, _single, _half, _bus in (
    ("rtx4090", 24, 1008, 82.6, 165.2, "pcie0"),
    ("rtx3090", 24, 936, 35.6, 71, "pcie1"),
    ("rtx3060", 12, 360, 12.7, 25.4, "pcie2"),
):
    CARDS += f"""
[[devices]]
name = "{_name}"
memory = "{_memory} GB"
memory_bandwidth = "{_bandwidth} GB/s"
launch_overhead = "5 us"
peak_flops = {{ float32 = "{_single} TFLOP/s", float16 = "{_half} TFLOP/s", bfloat16 = "{_half} TFLOP/s" }}
bus = "{_bus}"
"""

QWEN_32B = {
    "model_type": "qwen2", "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
    "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064, "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}  # fmt: skip
"""config.json of Qwen/Qwen2.5-32B, as far as it says the shapes."""


@dataclass(frozen=True)
class Setting:
    """A model on a machine; ``blocks`` is llama.cpp's format in place of ``dtype``, of about as many bits."""

    model: str
    machine: str
    context: int
    batch: int
    dtype: str = "fp16"
    blocks: str = "q8_0"


SETTINGS = (
    Setting("llama-2-7b", "v100-server", 4096, 8),
    Setting("llama-2-13b", "cards", 4096, 4),
    Setting("llama-3-8b", "a6000-server", 8192, 16),
    Setting("mistral-7b", "v100-hetero", 8192, 8),
    Setting("qwen2.5-32b", "cards", 8192, 4, "int4", "q4_k"),
    Setting("llama-2-70b", "a6000-server", 4096, 4, "int4", "q4_0"),
    Setting("llama-3-70b", "p4d", 8192, 16),
    Setting("llama-3-70b", "cards", 4096, 1, "int4", "q4_k"),
)
RUNTIMES = ("accelerate", "vllm", "llama.cpp", "torch")


def topology_of(name: str) -> Topology:
    """A preset, or the cards above."""
    return parse_topology(CARDS, "cards") if name == "cards" else load_topology(name)


def workload_of(setting: Setting, runtime: str) -> TokenWorkload:
    """What is asked for, in the runtime's format of weights."""
    dtype = setting.blocks if runtime == "llama.cpp" else setting.dtype
    return TokenWorkload(context=setting.context, batch=setting.batch, dtype=dtype)


def plan(setting: Setting, runtime: str, folder: Path) -> RuntimePlan:
    """Plan a setting; raises `InfeasibleError` where nothing fits."""
    model = setting.model
    if model == "qwen2.5-32b":
        (folder / model).mkdir(exist_ok=True)
        (folder / model / "config.json").write_text(json.dumps(QWEN_32B))
        model = str(folder / model)
    chosen = get_runtime(runtime)
    source = open_source(model, chosen)
    return make_plan(
        chosen, PlanRequest(source, topology_of(setting.machine), workload_of(setting, runtime), "learned")
    )


def rows(settings: tuple[Setting, ...], folder: Path) -> Iterator[list[str]]:
    """Lines of the table."""
    for setting in settings:
        for runtime in RUNTIMES:
            workload = workload_of(setting, runtime)
            case = f"{setting.model} {workload.dtype}, {setting.context} x {setting.batch}, {setting.machine}"
            try:
                made = plan(setting, runtime, folder)
            except InfeasibleError as error:
                yield [case, runtime, "", "does not fit", "", "", ". ".join(str(error).split(". ")[1:])]
                continue
            own = "; ".join(
                f"{row.label}: {format_ns(row.total_ns) if row.fits else 'does not fit'}" for row in made.defaults
            )
            usable = [row.total_ns for row in made.defaults if row.fits]
            better = f"{min(usable) / made.ours.total_ns:.2f}" if usable else "-"
            memory = ", ".join(
                f"{name} {size / made.ours.limit[name]:.0%}" for name, size in made.ours.held.items() if size
            )
            ours = format_spread(made.ours.total_ns, made.ours.intervals_ns.get(""))
            yield [case, runtime, own, ours, better, f"{made.gap:.1%}", memory]


HEAD = ("case", "runtime", "its own splits", "ours", "times faster", "gap", "memory used of what may be")


NOTES = """\
Latencies are predicted by the learned model, priced by the simulator; **nothing here ran on a GPU**. Times of ours have
the [interval](../cost_model.md#how-sure) of 80 %; bounds and gaps are at these prices.
A case is model, format of weights, context x batch, machine. The time is that of all prompts and of 128 new
tokens for each sequence (vLLM: with all stages busy). "Times faster" is against the runtime's best split of its
own that fits; gap is how far ours can be from the best split, proved. `cards` are an RTX 4090, an RTX 3090 and an
RTX 3060 without peer access. A prompt is computed whole by transformers (accelerate, torch), which takes room for
activations. How sizes are counted: [plans for other runtimes](../tasks/plan_for_runtimes.md)."""


def main() -> None:
    arguments = parser(__doc__)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for line in rows(SETTINGS[:2] if options.quick else SETTINGS, Path(folder)):
            print(" | ".join(line), flush=True)
            lines.append(line)
    write_json(options.json, [dict(zip(HEAD, line, strict=True)) for line in lines])
    page = Page("Plans for other runtimes", options.markdown, notes=NOTES)
    page.table(HEAD, lines, left=len(HEAD))
    page.write()


if __name__ == "__main__":
    main()
