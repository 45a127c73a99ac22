"""The pages of GPU measurements are what the kept records say, and the hour on a GPU is rehearsed on an emulated one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_hour
import pytest
from gpu_steps import concurrency, pages

ROOT = Path(__file__).resolve().parents[2]
RECORDS = sorted((ROOT / "benchmarks/data").glob("gpu_record_*.jsonl"))
PAGES = ("gpu_latency", "gpu_kernels", "gpu_cold_start", "gpu_direct_reads", "gpu_runtime")


def test_pages_say_what_the_records_say(tmp_path):
    pages.pages(RECORDS, tmp_path)
    for name in PAGES:
        kept = (ROOT / f"docs/results/{name}.md").read_text()
        assert kept.partition(pages.KEPT)[0].strip() == (tmp_path / f"{name}.md").read_text().strip()


def test_the_last_figure_of_a_case_counts(tmp_path):
    rows = [
        {"step": "kernels", "case": "product", "status": "done", "us": 2.0},
        {"step": "kernels", "case": "product", "status": "failed", "error": "lost"},
        {"step": "networks", "case": "n", "status": "done", "times": {"ours, one": 1}, "errors": {}},
        {"step": "networks", "case": "n", "status": "done", "times": {"ours, opara": 2}, "errors": {}},
    ]
    record = tmp_path / "record.jsonl"
    record.write_text("\n".join(map(json.dumps, rows)) + '\n{"cut off')
    found = pages.collect([record])
    assert found["kernels"]["product"]["us"] == 2.0
    assert found["networks"]["n"]["times"] == {"ours, one": 1, "ours, opara": 2}


NCU = """==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","k","gpu__time_duration.sum","nsecond","2,000"
"0","7","k","sm__cycles_active.avg.pct_of_peak_sustained_elapsed","%","90.5"
"1","7","graph","gpu__time_duration.sum","usecond","1,250.5"
"1","7","graph","sm__cycles_active.avg.pct_of_peak_sustained_elapsed","%","42.25"
"""


def test_the_longest_workload_of_ncu_is_the_graph():
    assert concurrency.busy(NCU) == {"busy_percent": 42.25, "us": 1250.5, "workloads": 2}
    with pytest.raises(ValueError, match="printed no table: ==ERROR== ERR_NVGPUCTRPERM"):
        concurrency.busy("==ERROR== ERR_NVGPUCTRPERM")


def test_pages_of_streams_pairs_peers_text_and_others(tmp_path):
    plan = {"predicted_us": 50.0, "bytes": 335000000, "flops": 4e9, "times": {}}
    plan["times"] = {"issued": {"median_us": 400.0}, "graph": {"median_us": 200.0}}
    times = {"ours, one": {"median_us": 300.0}, "ours, opara, best": {"median_us": 200.0}}
    rows = [
        {"step": "streams", "case": "net", "times": times, "predicted": {"ours, one": 100.0}},
        {"step": "issuing", "case": "net, one", "times": {"1 threads": {"median_us": 500.0}}},
        {"step": "efficiency", "case": "net, opara, best", "busy_percent": 61.0},
        {"step": "pairs", "case": "a", "us": 2.0, "shares": [0.25, 0.5]},
        {"step": "pairs", "case": "b", "us": 2.0, "shares": [1.0]},
        {"step": "pairs", "case": "a and b", "ratio": 0.75},
        {"step": "text", "case": "tokens on 1", "tokens": 24},
        {"step": "text", "case": "7B int8", "plans": {"1 rows": plan}},
        {"step": "networks", "case": "net", "times": times, "errors": {}},
        {"step": "others", "case": "net, CUDA", "times": {"CUDA": {"median_us": 250.0}}, "error": 1e-7},
        {"step": "values", "case": "v", "error": 1e-7, "tolerance": 1e-4},
        {"step": "states", "case": "s", "steps": 12, "error": 1e-7, "tolerance": 1e-5},
        {"step": "peers", "case": "from GPU 0 to GPU 1", "gb_s": {"pulled": 200.0, "pushed": 210.0, "staged": 25.0}},
        {
            "step": "peers", "case": "v", "devices": 2, "error": 1e-7,
            "times": {"try, graph": {"median_us": 90.0}, "never, graph": {"median_us": 120.0}},
        },
    ]  # fmt: skip
    record = tmp_path / "record.jsonl"
    record.write_text("\n".join(json.dumps({"status": "done", **row}) for row in rows))
    pages.pages([record], tmp_path)
    text = {
        name: (tmp_path / f"gpu_{name}.md").read_text() for name in ("streams", "pairs", "runtime", "text", "others")
    }
    assert "| opara, best | 200 (1.50) | – | 61 |" in text["streams"]
    assert "| one | 300 (1.00) | 100 | – |" in text["streams"]
    assert "| net, one | 500 |" in text["streams"]
    assert "| a and b | 50 % and 100 % | 0.75 |" in text["pairs"]
    assert "| from GPU 0 to GPU 1 | 200.0 | 210.0 | 25.0 |" in text["runtime"]
    assert "| v | 2 | 90 | 120 | 1e-07 |" in text["runtime"]
    assert "| 7B int8 | 1 rows | 50 | 400 | 200 | 50% | 20.0 |" in text["text"]
    assert "| net | CUDA | 250 | 200 | 1e-07 |" in text["others"]
    assert "| s | 12 | 1e-07 | 1e-05 |" in text["runtime"]


@pytest.mark.thorough
def test_the_hour_is_rehearsed(tmp_path):
    record = tmp_path / "record.jsonl"
    hour = [
        sys.executable, "tests/cuda_emulator/run.py", "--devices", "3", "--", sys.executable,
        "benchmarks/gpu_hour.py",
    ]  # fmt: skip
    environment = {**os.environ, "GPU_HOUR_WORK": str(tmp_path / "work")}

    def call(*arguments):
        subprocess.run([*hour, *arguments, "--folder", tmp_path / "hour"], check=True, cwd=ROOT, env=environment)

    call("prepare", "--rehearsal")
    call("run", "--record", record, "--quick", "--budget", "600")
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    assert not [row for row in rows if row.get("status") == "failed"]
    done = {row["step"] for row in rows if row.get("status") == "done" and row["case"] != "step"}
    without_gpu = {"profile", "sanitizer", "compiled", "efficiency"}  # need cupy, PyTorch for GPUs, or NVIDIA's tools
    assert done == set(gpu_hour.STEPS) - without_gpu
    cases = {row["case"] for row in rows if row["step"] == "peers"}
    assert cases >= {"GPU 0 with itself", "from GPU 1 to GPU 0", "branches schedule 1"}
    assert {file.stem for file in (tmp_path / "pages").iterdir()} >= {"gpu_text", "gpu_direct_reads", "gpu_runtime"}
    call("run", "--record", record, "--quick", "--step", "values", "text")
    call("run", "--record", record, "--quick", "--total", "1")
    more = [json.loads(line) for line in record.read_text().splitlines()][len(rows) :]
    assert {row["case"] for row in more if row.get("status") == "done"} == {"step"}, "nothing is measured twice"
    assert sum(row.get("status") == "no time left" for row in more) == len(gpu_hour.STEPS)
