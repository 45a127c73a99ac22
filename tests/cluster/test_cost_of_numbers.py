"""Whatever number stands in a cluster's, a service's or a topology's file: an answer or an error, within seconds of work."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cluster_cases import chain_service
from hypothesis import given, settings
from hypothesis import strategies as st

import tvm_sched_cluster
import tvm_sched_runtime.problem
from thorough import examples
from tvm_sched_cluster import ClusterState, Edge, Service, ServiceOperator, ServiceRequest, load_cluster, place
from tvm_sched_cluster.files.cluster_file import parse_cluster
from tvm_sched_cluster.files.services_file import parse_services
from tvm_sched_runtime.errors import FormatError, TopologyError, TvmSchedError
from tvm_sched_runtime.problem.topology_file import parse_topology

MOST_SECONDS = 20
"""Processor time of one placement, many times what any takes: a hang is told, and no busy machine."""
PRESETS = Path(tvm_sched_cluster.__file__).parent / "presets"
SERVICES, CLUSTER = ((PRESETS / f"rampa-{name}.toml").read_text() for name in ("services", "base"))
NUMBERS = st.one_of(
    st.sampled_from(("0", "-1", "1e-30", "1e-9", "0.5", "1e4", "1e6", "1e12", "1e18", "1e300", "inf", "nan")),
    st.integers(0, 10**19).map(str),
    st.integers(1, 400).map(str),
)


@contextmanager
def bounded_work() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise AssertionError(f"more than {MOST_SECONDS} s of processor time")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def altered(text: str, position: int, number: str) -> str:
    """The text with another number in place of one of its numbers."""
    found = list(re.finditer(r"(?<=[ \"\[])\d+(?:\.\d+)?(?=[ ,\"\n\]])", text))
    chosen = found[position % len(found)]
    return text[: chosen.start()] + number + text[chosen.end() :]


def place_all(cluster_text: str, services_text: str) -> None:
    with bounded_work():
        try:
            services = parse_services(services_text)
            state = ClusterState(parse_cluster(cluster_text), services)
        except TvmSchedError:
            return
        for service in services:
            with suppress(TvmSchedError):
                place(state, ServiceRequest(service.name, service.name), "first-fit")


@settings(max_examples=examples(21), deadline=None)
@given(st.integers(0, 10**6), NUMBERS)
def test_any_number_of_a_services_file(position, number):
    place_all(CLUSTER, altered(SERVICES, position, number))


@settings(max_examples=examples(45), deadline=None)
@given(st.integers(0, 10**6), NUMBERS)
def test_any_number_of_a_cluster_file(position, number):
    place_all(altered(CLUSTER, position, number), SERVICES)


@settings(max_examples=examples(120), deadline=None)
@given(st.sampled_from(("p4d", "v100-server", "v100-hetero")), st.integers(0, 10**6), NUMBERS)
def test_any_number_of_a_topology_file(name, position, number):
    text = (Path(tvm_sched_runtime.problem.__file__).parent / "presets" / f"{name}.toml").read_text()
    with bounded_work(), suppress(TvmSchedError):
        parse_topology(altered(text, position, number))


@pytest.mark.parametrize(
    ("found", "given_", "words"),
    [
        ("throughput = 30.0", "throughput = 1e12", "does not fit on the free GPUs"),
        ('latency = "0.2 s"', 'latency = "1e-30 s"', "does not fit on the free GPUs"),
        ("count = 24", "count = 150", "latency: no mix of these GPUs reaches the 200.000 ms"),
        ('"6.12 MB"', '"1e18 GB"', "bytes are allowed"),
        ("count = 24", "count = 300", "into 302 blocks; at most 256 blocks are allowed: join operators"),
    ],
)
def test_requirements_that_nothing_meets_and_long_services(found, given_, words):
    services = parse_services(SERVICES.replace(found, given_, 1))
    state = ClusterState(load_cluster("rampa-large"), services)
    with bounded_work(), pytest.raises(TvmSchedError, match=words):
        place(state, ServiceRequest("r", "service2"), "first-fit")


@pytest.mark.parametrize("count", [0, -1, 10**4 + 1, 10**18])
def test_counts_out_of_range(count):
    with pytest.raises(FormatError, match=rf"services: {count} is out of range; 1 to 10000 are allowed"):
        parse_services(SERVICES.replace("count = 24", f"count = {count}", 1))
    with pytest.raises(FormatError, match=r"is out of range; 1 to 200000 are allowed - at `\$.racks\[0\].servers\[0\]"):
        parse_cluster(re.sub(r"count = \d+", f"count = {count if count < 1 else 10**9}", CLUSTER, count=1))


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_blocks_end_where_only_the_next_operator_reads(case):
    count, pairs = case
    operators = tuple(ServiceOperator(f"op{i}", 1.0, 1) for i in range(count))
    edges = tuple(Edge(f"op{a}", f"op{b}", 1 + k) for k, (a, b) in enumerate(pairs))
    service = Service("s", operators, 1.0, 1.0, edges)

    def crossing(place: int) -> list[tuple[int, int]]:
        return [(a, b) for a, b in pairs if min(a, b) < place <= max(a, b)]

    ends = [p for p in range(1, count) if all(pair == (p - 1, p) for pair in crossing(p))]
    assert [end for _, end in service.blocks] == [*ends, count]
    for p in range(1, count):
        assert service.input_bytes(p) == sum(1 + k for k, (a, b) in enumerate(pairs) if min(a, b) < p <= max(a, b))
    assert chain_service([1] * count).blocks == tuple((i, i + 1) for i in range(count))


@pytest.mark.parametrize("number", ["200001", "4999999", "1000000000000"])
def test_more_fibres_than_a_program_can_hold_are_refused(number):
    with pytest.raises(TopologyError, match="fibres; at most 200000 are allowed"):
        parse_cluster(CLUSTER.replace("fibres = 4", f"fibres = {number}"))
