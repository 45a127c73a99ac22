"""Which generations are abandoned, by what Ray lists."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'tvm-sched[cluster]'")

import ray

from tvm_sched_cluster.serving import deployment_actors


def test_generations_of_ended_commands_are_abandoned(monkeypatch):
    jobs = [{"JobID": "1", "IsDead": True}, {"JobID": "2", "IsDead": False}]
    actors = [
        ("", "DEAD", "1"),
        ("d/stage0", "ALIVE", "1"),
        ("d/stage0@2", "ALIVE", "1"),  # served
        ("d/stage0@3", "ALIVE", "2"),
        ("d/stage0@3", "DEAD", "1"),  # an earlier rollout of that number, which failed
        ("d/stage0@4", "ALIVE", "1"),
        ("d/store@4", "RESTARTING", "1"),
        ("d/ingress", "ALIVE", "1"),
        ("other/stage0@9", "ALIVE", "1"),
    ]
    table = {str(n): {"Name": name, "State": state, "JobID": job} for n, (name, state, job) in enumerate(actors)}
    names = sorted({name for name, state, _ in actors if name and state != "DEAD"})
    monkeypatch.setattr(ray._private.state, "jobs", lambda: jobs)
    monkeypatch.setattr(ray._private.state, "actors", lambda: table)
    monkeypatch.setattr(deployment_actors, "all_actors", lambda: names)
    assert deployment_actors.abandoned_generations("d", 2) == {4}
    jobs[1]["IsDead"] = True
    assert deployment_actors.abandoned_generations("d", 2) == {3, 4}
    assert deployment_actors.abandoned_generations("d", 4) == set()
