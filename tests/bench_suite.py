"""A suite of one small instance of each kind."""

import hashlib
import json

from tvm_sched_bench.testing import random_problem

SUITE = """
format = "tvm_sched.suite"
version = 1

[[family]]
name = "random"
kind = "latency"
source = "problem"
[family.grid]
run = ["cold", "warm"]
[family.files]
"problem.json" = "{problem}"

[[family]]
name = "chain"
kind = "throughput"
source = "graph"
[family.grid]
stages = [2]
[family.files]
"chain.json" = "{chain}"

[[family]]
name = "workload"
kind = "placement"
source = "workload"
[family.files]
"workload.json" = "{workload}"

[[family]]
name = "services"
kind = "cluster"
source = "requests"
options = {{ cluster = "rampa-base" }}
[family.grid]
demand = ["huge-model"]
seed = [0]
"""
CHAIN = {
    "nodes": [{"id": name, "work": work, "size_out": 1} for name, work in zip("abcd", (4, 4, 4, 8), strict=True)],
    "edges": [{"source": a, "target": b} for a, b in ("ab", "bc", "cd")],
}
WORKLOAD = {
    "maxFPGAs": 2,
    "maxSizePerFPGA": 10,
    "nodes": [
        {"id": v, "supportedOnFpga": True, "cpuLatency": 10, "fpgaLatency": 1, "size": 6} for v in range(3)
    ],
    "edges": [{"sourceId": 0, "destId": 1, "cost": 0.5}, {"sourceId": 0, "destId": 2, "cost": 0.5}],
}  # fmt: skip


def write_suite(folder):
    """The suite's files; its folder."""
    random_problem(1, operators=8, devices=2, memory="generous").save(folder / "problem.json")
    (folder / "chain.json").write_text(json.dumps(CHAIN))
    (folder / "workload.json").write_text(json.dumps(WORKLOAD))
    digests = {
        name: hashlib.sha256((folder / f"{name}.json").read_bytes()).hexdigest()
        for name in ("problem", "chain", "workload")
    }
    (folder / "suite.toml").write_text(SUITE.format(**digests))
    return folder
