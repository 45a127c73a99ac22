"""Draw a topology as SVG: host memory, the buses under it, the devices on them, the links between them."""

from __future__ import annotations

from html import escape

from tvm_sched_runtime.problem import Device, Link, Topology

from .units import format_bytes, format_rate

BOX, GAP, MARGIN = 142, 22, 4
HOST_TOP, BUS_TOP, DEVICE_TOP, DEVICE_HEIGHT = 12, 84, 150, 62


def topology_svg(topology: Topology) -> str:
    """Draw a topology; colours come from the page's style sheet, by class."""
    devices = _by_bus(topology)
    left = {device.name: float(MARGIN + n * (BOX + GAP)) for n, device in enumerate(devices)}
    width = 2 * MARGIN + len(devices) * (BOX + GAP) - GAP
    parts = [_host(topology, width)]
    parts += _buses(topology, devices, left)
    links, depth = _links(topology, left)
    parts += links
    parts += [_device(device, left[device.name]) for device in devices]
    bottom = DEVICE_TOP + DEVICE_HEIGHT + depth
    switches, bottom = _switches(topology, left, bottom)
    parts += switches
    height = bottom + 14
    label = escape(f"Topology {topology.name}: {len(devices)} devices, {len(topology.links)} links")
    return (
        f'<svg class="topology" role="img" aria-label="{label}" viewBox="0 0 {width} {height}" '
        f'style="max-width:{max(width, 360)}px" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _by_bus(topology: Topology) -> list[Device]:
    """Sort the devices so that those of one bus are neighbours, otherwise in the topology's order."""
    rank = {bus.name: n for n, bus in enumerate(topology.buses)}
    return sorted(topology.devices, key=lambda device: rank.get(device.bus, len(rank)))


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">{escape(text)}</text>'


def _box(kind: str, x: float, y: float, width: float, height: float, title: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="7">'
        f"<title>{escape(title)}</title></rect>"
    )


def _host(topology: Topology, width: float) -> str:
    text = "host memory" + (f"  {format_bytes(topology.host_memory)}" if topology.host_memory else "")
    if disk := topology.storage:
        text += f"  <  {disk.name}  {format_rate(disk.bandwidth)}"
    lies = (
        "inputs lie here when a run begins, parameters on the disk"
        if disk
        else "inputs and parameters lie here when a run begins"
    )
    box = _box("host", MARGIN, HOST_TOP, width - 2 * MARGIN, 34, lies)
    return box + _text(width / 2, HOST_TOP + 22, text)


def _buses(topology: Topology, devices: list[Device], left: dict[str, float]) -> list[str]:
    parts = []
    for device in devices:
        middle = left[device.name] + BOX / 2
        kind, top = ("wire", BUS_TOP + 30) if device.bus else ("wire shared", HOST_TOP + 34)
        title = f"<title>{escape(device.name)} shares host memory</title>" if not device.bus else ""
        parts.append(f'<line class="{kind}" x1="{middle}" y1="{top}" x2="{middle}" y2="{DEVICE_TOP}">{title}</line>')
        if not device.bus:
            parts.append(_text(middle + 8, (top + DEVICE_TOP) / 2, "shared", "small", "start"))
    for bus in topology.buses:
        on = [left[device.name] for device in devices if device.bus == bus.name]
        if not on:
            continue
        x, width = min(on), max(on) - min(on) + BOX
        direction = "each way" if bus.duplex else "one way at a time"
        title = f"{bus.name}: {format_rate(bus.bandwidth)} {direction}, one copy at a time"
        middle = x + width / 2
        parts.append(f'<line class="wire" x1="{middle}" y1="{HOST_TOP + 34}" x2="{middle}" y2="{BUS_TOP}"/>')
        parts.append(_box("bus", x, BUS_TOP, width, 30, title))
        parts.append(_text(middle, BUS_TOP + 20, f"{bus.name}  {format_rate(bus.bandwidth)}"))
    return parts


def _device(device: Device, x: float) -> str:
    rate = format_rate(device.memory_bandwidth)
    title = f"{device.name}: {device.model or device.kind}, {format_bytes(device.memory)} at {rate}"
    middle, detail = x + BOX / 2, device.model or device.kind
    detail = detail if len(detail) <= 22 else detail[:21] + "…"
    return (
        _box("device", x, DEVICE_TOP, BOX, DEVICE_HEIGHT, title)
        + _text(middle, DEVICE_TOP + 21, device.name, "name")
        + _text(middle, DEVICE_TOP + 38, detail, "small")
        + _text(middle, DEVICE_TOP + 53, format_bytes(device.memory), "small")
    )


def _links(topology: Topology, left: dict[str, float]) -> tuple[list[str], float]:
    """Draw links as arcs under the devices, short ones above long ones; return the drawing and its depth."""
    ranked = sorted(
        topology.links, key=lambda link: (abs(left[link.devices[0]] - left[link.devices[1]]), left[link.devices[0]])
    )
    parts, labels, deepest, used = [], [], 0.0, dict.fromkeys(left, 0)
    ports = {name: sum(name in link.devices for link in topology.links) for name in left}
    for link in ranked:
        a, b = sorted(link.devices, key=lambda name: left[name])
        x1, x2 = _port(left[a], used, ports, a), _port(left[b], used, ports, b)
        depth = 26 + 30 * (left[b] - left[a]) / (BOX + GAP)
        deepest = max(deepest, depth)
        y = DEVICE_TOP + DEVICE_HEIGHT
        parts.append(_arc(link, x1, x2, y, depth))
        if len(topology.links) <= 12:
            labels.append(_text((x1 + x2) / 2, y + depth * 0.75 + 13, _link_label(link), "small halo"))
    return parts + labels, deepest + 8 if ranked else 0.0


def _port(x: float, used: dict[str, int], ports: dict[str, int], name: str) -> float:
    """Return the next free place on the lower edge of a device."""
    used[name] += 1
    return x + BOX * used[name] / (ports[name] + 1)


def _arc(link: Link, x1: float, x2: float, y: float, depth: float) -> str:
    direction = "each way" if link.duplex else "one way at a time"
    title = f"{link.devices[0]} - {link.devices[1]}: {format_rate(link.bandwidth)} {direction}"
    return (
        f'<path class="link" style="stroke-width:{1.5 + min(link.ways, 12) * 0.9:.1f}" '
        f'd="M{x1:.1f} {y} C{x1:.1f} {y + depth:.1f} {x2:.1f} {y + depth:.1f} {x2:.1f} {y}">'
        f"<title>{escape(title)}</title></path>"
    )


def _link_label(link: Link) -> str:
    return f"{link.ways}× {format_rate(link.bandwidth)}" if link.ways > 1 else format_rate(link.bandwidth)


def _switches(topology: Topology, left: dict[str, float], top: float) -> tuple[list[str], float]:
    parts = []
    for switch in topology.switches:
        top += 26
        xs = [left[name] for name in switch.devices]
        for x in xs:
            middle = x + BOX / 2
            parts.append(
                f'<line class="wire" x1="{middle}" y1="{DEVICE_TOP + DEVICE_HEIGHT}" x2="{middle}" y2="{top}"/>'
            )
        width = max(xs) - min(xs) + BOX
        rate = format_rate(switch.bandwidth)
        parts.append(_box("switch", min(xs), top, width, 30, f"{switch.name}: {rate} a port in each direction"))
        parts.append(_text(min(xs) + width / 2, top + 20, f"{switch.name}  {rate} a port"))
        top += 30
    return parts, top
