"""The pages of GPU measurements are what the kept records say, and the hour on a GPU is rehearsed on an emulated one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_steps import pages

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


@pytest.mark.thorough
def test_the_hour_is_rehearsed(tmp_path):
    hour, record = [sys.executable, "benchmarks/gpu_hour.py"], tmp_path / "record.jsonl"
    subprocess.run([*hour, "prepare", "--folder", tmp_path / "hour", "--rehearsal"], check=True, cwd=ROOT)
    emulated = [sys.executable, "tests/cuda_emulator/run.py", "--", *hour, "run", "--folder", tmp_path / "hour"]
    subprocess.run([*emulated, "--record", record, "--quick", "--budget", "600"], check=True, cwd=ROOT)
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    assert not [row for row in rows if row.get("status") == "failed"]
    assert {row["step"] for row in rows if row.get("status") == "done"} >= {"environment", "values", "cold_start"}
