"""Draw the predicted run of a schedule as a small SVG: a lane for each device, bus and link in use.

``python examples/draw_schedule.py problem.json schedule.json -o schedule.svg``. The HTML report
(``tvm-sched schedule --report``) shows the same with zoom and details; this is for documents.
"""

import argparse
from html import escape
from pathlib import Path

from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule import Schedule
from tvm_sched_runtime.schedule.simulator import simulate

COLOURS = {"kernel": "#3b6fb6", "load": "#8fbf7f", "copy": "#e0903a", "host_read": "#9a6fb0"}
LABELS = {"kernel": "kernel", "load": "load", "copy": "peer copy", "host_read": "direct host access"}
LEFT, WIDTH, LANE, TOP = 110, 760, 20, 46


def draw(problem: Problem, schedule: Schedule) -> str:
    """The SVG's text."""
    timeline = simulate(problem, schedule)
    devices = [lane for lane in timeline.lanes if lane.split("/")[0] in problem.topology.device_id]
    lanes = sorted(devices) + [channel for channel in problem.topology.channels if channel in timeline.lanes]
    row = {lane: TOP + n * LANE for n, lane in enumerate(lanes)}
    scale, bottom = WIDTH / max(timeline.latency_ns, 1), TOP + len(lanes) * LANE
    parts = [f'<text x="4" y="16" font-weight="bold">{escape(_title(problem, schedule))}</text>', *_legend(timeline)]
    for lane, y in row.items():
        parts.append(f'<text x="{LEFT - 6}" y="{y + 14}" text-anchor="end">{escape(lane)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y + 2}" width="{WIDTH}" height="{LANE - 4}" fill="#f1f1f1"/>')
    for event in timeline.events:
        for lane in event.lanes:
            x, width = LEFT + event.start_ns * scale, max(event.duration_ns * scale - 0.3, 0.4)
            parts.append(
                f'<rect x="{x:.1f}" y="{row[lane] + 2}" width="{width:.1f}" height="{LANE - 4}" '
                f'fill="{COLOURS[event.kind]}"/>'
            )
    for tenth in range(0, 11, 2):
        x = LEFT + WIDTH * tenth / 10
        label = f"{timeline.latency_ns * tenth / 10 / 1e6:.2f} ms"
        parts.append(f'<text x="{x:.0f}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    style = 'font-family="sans-serif" font-size="11"'
    width, height = LEFT + WIDTH + 30, bottom + 24
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"


def _title(problem: Problem, schedule: Schedule) -> str:
    title = f"{problem.graph.name} on {problem.topology.name}, scheduler {schedule.scheduler}"
    if schedule.certificate is None:
        return title
    known = schedule.certificate
    return f"{title}: {known.latency_ns / 1e6:.2f} ms, lower bound {known.lower_bound_ns / 1e6:.2f} ms"


def _legend(timeline) -> list[str]:
    parts, x = [], LEFT
    for kind in dict.fromkeys(event.kind for event in timeline.events):
        parts.append(f'<rect x="{x}" y="26" width="12" height="12" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 16}" y="36">{LABELS[kind]}</text>')
        x += 34 + 7 * len(LABELS[kind])
    return parts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problem", type=Path)
    parser.add_argument("schedule", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.output.write_text(draw(Problem.load(arguments.problem), Schedule.load(arguments.schedule)))
    print(f"picture: {arguments.output}")
