"""The report of what runs on a cluster: racks with their GPUs, services, links; one HTML file that needs no network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tvm_sched.report.page import write_frame
from tvm_sched.report.sections import cards, table
from tvm_sched.report.units import format_ns, format_rate

from . import Cluster, ClusterState, ServicePlacement
from .problem.cluster import Rack


def write_cluster_report(
    path: str | os.PathLike[str],
    state: ClusterState,
    *,
    title: str = "",
    options: Mapping[str, Any] | None = None,
) -> None:
    """Write the report of what runs, waits and has failed; ``path``, ``title`` and ``options`` are those of `write_page`."""
    cluster = state.cluster
    kinds = ", ".join(kind.name for kind in cluster.kinds)
    size = f"{len(cluster.gpus):,} GPUs ({escape(kinds)}) in {len(cluster.racks)} racks"
    write_frame(
        path,
        title or f"Services on {cluster.name}",
        subtitle=f"{size}, cluster <code>{cluster.digest}</code>",
        main=f"<section>{_cards(state)}</section>{_racks(state)}{_services(state)}{_links(state)}",
        details={"source of the figures": cluster.source or "unknown", **(options or {})},
        data={},
        scripts=[Path(__file__).with_name("cluster_report.js").read_text("utf-8")],
    )


def _cards(state: ClusterState) -> str:
    cluster, failed = state.cluster, set(state.failed)
    busy = sum(len(placement.gpus) for placement in state.running.values())
    broken = sum(gpu.name in failed for gpu in cluster.gpus)
    fibres = sum(link.fibres for link in cluster.links)
    used = sum(len(placement.hops) for placement in state.running.values())
    return cards(
        [
            ("Services", f"{len(state.running):,}", "run"),
            ("Waiting", f"{len(state.waiting):,}", "ended by a failure, without a place since"),
            ("GPUs in use", f"{busy:,}", f"of {len(cluster.gpus):,}, {broken:,} failed"),
            ("Fibres in use", f"{used:,}", f"of {fibres:,}"),
        ]
    )


def _racks(state: ClusterState) -> str:
    holder = {name: placement for placement in state.running.values() for name in placement.gpus}
    failed = set(state.failed)
    each = "".join(_rack(state.cluster, rack, holder, failed) for rack in state.cluster.racks)
    return f"""<section><h2>GPUs</h2>
<p class="hint">Each box is a GPU, with the request that holds it and its stage. A dashed box is free, a crossed one has
failed. Choose a request to see all its GPUs; Escape ends that.</p>
<p class="hint chosen" role="status"></p><div class="racks">{each}</div></section>"""


def _rack(cluster: Cluster, rack: Rack, holder: Mapping[str, ServicePlacement], failed: set[str]) -> str:
    rows = []
    for server in rack.servers:
        boxes = []
        for g in cluster.servers[server.name]:
            name = cluster.gpus[g].name
            boxes.append(_gpu(name, holder.get(name), name in failed))
        rows.append(
            f'<div class="server"><span>{escape(server.name)}<small>{escape(server.kind)}</small></span>'
            f'<div class="gpus">{"".join(boxes)}</div></div>'
        )
    return f'<div class="rack"><h3>{escape(rack.name)} <small>{escape(rack.switch)}</small></h3>{"".join(rows)}</div>'


def _gpu(name: str, placement: ServicePlacement | None, failed: bool) -> str:
    if failed:
        return f'<span class="gpu failed" title="{escape(name)}: failed">failed</span>'
    if placement is None:
        return f'<span class="gpu free" title="{escape(name)}: free">free</span>'
    stage = placement.gpus.index(name)
    said = f"{name}: stage {stage} of {len(placement.stages)} of {placement.request} ({placement.service})"
    return (
        f'<button class="gpu" data-request="{escape(placement.request)}" title="{escape(said)}" '
        f'aria-label="{escape(said)}">{escape(placement.request)}<small>{stage}</small></button>'
    )


def _services(state: ClusterState) -> str:
    rows = [
        [
            f'<button data-request="{escape(p.request)}">{escape(p.request)}</button>',
            escape(p.service),
            escape(", ".join(p.gpus)),
            f"{len(p.stages)}",
            f"{len(p.hops)}",
            f"{p.throughput:.3g}",
            format_ns(p.latency_ns),
            escape(p.allocator),
        ]
        for p in state.running.values()
    ]
    waiting = ", ".join(f"{escape(name)} ({escape(r.service)})" for name, r in state.waiting.items())
    said = f'<p class="hint">Waiting: {waiting}</p>' if waiting else ""
    head = ["Request", "Service", "GPUs, by stage", "Stages", "Fibres", "Inputs a second", "Latency", "Allocator"]
    return f"<section><h2>Services</h2>{table(head, rows, numbers=3)}{said}</section>"


def _links(state: ClusterState) -> str:
    used: dict[str, int] = {}
    for placement in state.running.values():
        for hop in placement.hops:
            used[hop.link] = used.get(hop.link, 0) + 1
    rows: list[Sequence[str]] = [
        [
            escape(link.name),
            format_rate(link.bandwidth),
            f"{used.get(link.name, 0)}",
            f"{link.fibres}",
            "failed" if link.name in state.failed else "",
        ]
        for link in state.cluster.links
    ]
    if not rows:
        return ""
    head = ["Link", "A fibre", "In use", "Fibres", "State"]
    return f"<section><h2>Links</h2>{table(head, rows)}</section>"
