"""Tables in narrow terminals."""

import io

from rich.console import Console

from tvm_sched.report.tables import table


def shown(view, width):
    file = io.StringIO()
    Console(file=file, width=width).print(view)
    return file.getvalue()


def test_80_columns_show_the_names_and_all_numbers():
    head = ("policy", "accepted, %", "running, % of bound", "GPUs used, %", "fragmented, %", "moves", "unavailable, s")
    text = shown(table((*head, "decision, ms"), [("first-fit", "100.0", "99.9", "10.1", "5.3", "0", "0", "0.51")]), 80)
    assert all(each in text for each in ("first-", "100.0", "99.9", "10.1", "5.3", "0.51"))
    head = ("scheduler", "latency", "lower bound", "gap", "bound by", "found in", "speed-up")
    row = ("heft", "3.48 us", "3.01 us", "13.6%", "critical path", "590 us", "1.25x")
    assert all(each in shown(table(head, [row, ("(critical-path)", *row[1:])]), 80) for each in row)


def test_120_columns_break_nothing():
    head = ("scheduler", "latency", "lower bound", "gap", "bound by", "found in", "speed-up")
    text = shown(
        table(head, [("(critical-path)", "3.48 us", "3.01 us", "13.6%", "critical path", "590 us", "1.25x")]), 120
    )
    assert "(critical-path)" in text
    assert "lower bound" in text
