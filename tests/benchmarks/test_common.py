"""What all benchmarks share."""

import sys

from _common import circumstances


def test_a_page_names_no_path_of_this_machine(monkeypatch):
    words = [
        "/somewhere/benchmarks/cost_model.py",
        "--vidur",
        "/elsewhere/vidur",
        "--plot=/elsewhere/x/p.svg",
        "--profile",
    ]
    monkeypatch.setattr(sys, "argv", [*words, "../their/p.json", "--markdown", "docs/p.md"])
    made = "`python benchmarks/cost_model.py --vidur vidur --plot=p.svg --profile p.json --markdown docs/p.md`"
    assert made in circumstances()[0]
