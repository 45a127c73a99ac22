"""Histograms and counters as Prometheus reads them."""

from types import SimpleNamespace

import pytest

pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families

from tvm_sched_serve.execution_queue import Timing
from tvm_sched_serve.metrics import Metrics

LABELS = {"model": "m", "version": "1"}


def samples(metrics):
    """Values by name and labels, those of the model and version apart."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            assert LABELS.items() <= sample.labels.items()
            rest = {label: value for label, value in sample.labels.items() if label not in LABELS}
            found[(sample.name, *rest.values())] = sample.value
    return found


def test_times_are_counted_in_all_buckets_that_they_fit():
    metrics = Metrics()
    queue = SimpleNamespace(model=SimpleNamespace(name="m", version="1"), waiting=0, running=0)
    queue.statistics = SimpleNamespace(executions=4)
    metrics.change(queue, True)
    for seconds in (1e-4, 0.0002, 2.0, 20.0):  # a bucket holds its bound
        queue.observe(200, seconds, Timing(1000, 2000, 3000, 4000))
    queue.observe(504, 60.0, None)
    metrics.change(queue, False)
    again = SimpleNamespace(**vars(queue))  # the version is loaded anew
    metrics.change(again, True)
    again.observe(200, 0.003, Timing(0, 0, 0, 0))
    found = samples(metrics)
    name = "tvm_sched_request_seconds"
    counts = {
        bound: found[f"{name}_bucket", bound] for bound in ("0.0001", "0.00025", "0.0025", "0.005", "2.5", "10.0")
    }
    assert counts == {"0.0001": 1, "0.00025": 2, "0.0025": 2, "0.005": 3, "2.5": 4, "10.0": 4}
    assert found[f"{name}_bucket", "+Inf"] == found[f"{name}_count",] == 5
    assert found[f"{name}_sum",] == pytest.approx(22.0033)
    assert found["tvm_sched_split_seconds_sum",] == pytest.approx(16e-6)
    assert found["tvm_sched_first_token_seconds_count",] == 0
    assert {status: found["tvm_sched_requests_total", status] for status in ("200", "504")} == {"200": 5, "504": 1}
    assert found["tvm_sched_executions_total",] == 4
