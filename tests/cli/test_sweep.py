"""The command `sweep`: table, JSON, page, workers, Ctrl-C."""

import json
import re
import signal
import subprocess
import sys

import pytest

PROGRAM = [sys.executable, "-m", "tvm_sched.cli"]


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_table_with_any_workers(run, problem_file, tmp_path):
    command = (
        "sweep", problem_file, "--vary", "gpus=1,2", "--vary", "bandwidth=1,2", "--costs", "roofline", "--option",
        "work=0.02", "--json",
    )  # fmt: skip
    first = run(*command, "--workers", "processes:1").json
    second = run(*command, "--workers", "processes:2", "--report", tmp_path / "s.html").json
    assert first["rows"] == second["rows"]
    assert [row["values"] for row in first["rows"]] == [
        {"gpus": gpus, "bandwidth": factor} for gpus in (1, 2) for factor in (1, 2)
    ]
    assert "report-data" in (tmp_path / "s.html").read_text()


def test_wrong_options_are_refused_before_the_work(fails, problem_file, model_file):
    assert "--vary gpus=0" in fails(2, "sweep", problem_file, "--vary", "gpus=0")
    assert "--target" in fails(2, "sweep", problem_file, "--vary", "gpus=1", "--target", "-5")
    assert "batch is fixed" in fails(2, "sweep", problem_file, "--vary", "batch=1,2")
    assert "leave --topology away" in fails(2, "sweep", problem_file, "-t", "p4d", "--vary", "topology=p4d")
    many = "bandwidth=" + ",".join(map(str, range(1, 51)))
    assert "2,500 variants" in fails(2, "sweep", problem_file, "--vary", "gpus=1..50", "--vary", many)
    assert "--workers processes:0" in fails(2, "sweep", problem_file, "--vary", "gpus=1", "--workers", "processes:0")
    assert "needs a machine" in fails(2, "sweep", model_file, "--vary", "gpus=1")


@pytest.mark.thorough
@pytest.mark.slow
def test_batches_of_a_language_model(run, tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 40,
        "intermediate_size": 48,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = ["sweep", tmp_path / "config.json", "--shape", "1x8", "-t", "v100-server", "--vary", "batch=1,4"]
    rows = run(*command, "-s", "single", "--no-variants", "--workers", "processes:1", "--json").json["rows"]
    assert [row["batch"] for row in rows] == [1, 4]
    assert rows[1]["latency"] > rows[0]["latency"]
    assert rows[1]["throughput"] == pytest.approx(4 / rows[1]["latency"])


@pytest.mark.slow
def test_ctrl_c_prints_the_finished_rows(problem_file, tmp_path):
    factors = ",".join(map(str, range(1, 500)))
    command = [*PROGRAM, "sweep", str(problem_file), "--vary", "gpus=1..2", "--vary", f"bandwidth={factors}"]
    command += ["--costs", "roofline", "--option", "work=0.2", "--workers", "processes:1", "--json"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if re.search(r"\([1-9]\d* of 998", line):
            process.send_signal(signal.SIGINT)
            break
    shown, rest = process.communicate(timeout=120)
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    rows = json.loads(shown)["rows"]
    assert 1 <= len(rows) < 998
    assert f"interrupted; {len(rows)} of 998 rows are finished" in rest
