"""Small clusters and services that can be worked out by hand."""

from tvm_sched_cluster import Cluster, GpuKind, Link, Rack, Server, Service, ServiceOperator, Switch


def small_cluster(racks=2, gpus=2, fibres=1, memory=10, second_kind="fast"):
    """Racks in a row, of kinds slow, fast, slow, ...; 1 byte a ns, 1 FLOP a ns (slow) or 2 (fast).

    Every link and switch takes 1 ns, so that the head of a circuit over k links is 3 + 2k ns.
    """
    kinds = (GpuKind("slow", 1e9, memory, 1e18), GpuKind("fast", 2e9, memory, 1e18))
    switches = tuple(Switch(f"s{i}", 1e-9) for i in range(racks))
    links = tuple(Link((f"s{i}", f"s{i + 1}"), 1e9, 1e-9, fibres) for i in range(racks - 1))
    made = tuple(
        Rack(f"r{i}", f"s{i}", (Server(f"r{i}-server0", "slow" if i % 2 == 0 else second_kind, gpus),), 1e9, 1e-9)
        for i in range(racks)
    )
    return Cluster("small", kinds, switches, made, links)


def chain_service(times, memory=None, outputs=None, cycle_ns=10**6, latency_ns=10**6, name="chain", edges=None):
    """A chain of operators that take this many ns on a slow GPU and half of it on a fast one."""
    count = len(times)
    operators = tuple(
        ServiceOperator(f"op{i}", float(times[i]), (memory or [1] * count)[i], (outputs or [1] * count)[i])
        for i in range(count)
    )
    return Service(name, operators, 1e9 / cycle_ns, latency_ns * 1e-9, edges)
