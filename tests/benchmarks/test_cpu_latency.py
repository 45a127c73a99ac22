"""The benchmark of latencies on CPUs: which networks there are, what a page says, what becomes of a method that fails."""

import _cpu_page
import _cpu_worker
import cpu_latency
import pytest
from _cpu_models import HALVES, LARGE, Case, cases, image


def test_the_halves_are_fixed_and_each_has_all_sorts():
    known = cases()
    assert sum(case.group == "architectures" for case in known.values()) >= 30
    for half in HALVES:
        kinds = {case.kind for case in known.values() if case.half == half and case.group == "architectures"}
        assert {"convolutional", "hybrid", "transformer", "language"} <= kinds
    assert known["tv/resnet18"].half == "looked-at"
    assert known["tv/vit_b_16"].half == "held-out"


def test_a_network_without_its_package_says_so():
    case = Case("a/b", "files", "recurrent", ("no_such_package",), lambda: (None, image()))
    assert case.missing == "needs no_such_package"


def row(name, half="held-out", **methods):
    return {"model": name, "set": "onnx", "half": half, "kind": "convolutional", "threads": 1, "methods": methods}


def cell(ms, first=1.0):
    return {"ms": ms, "p10": ms, "p90": 2 * ms, "runs": 10, "first_s": first, "mib": 100.0, "error": 0.0}


def test_ratio_is_to_the_best_peer_and_failed_cells_do_not_count():
    found = row("m", **{"ONNX Runtime": cell(10), "OpenVINO": cell(8), "eager": {"failed": "no"}, "ours": cell(6)})
    assert _cpu_page.ratio(found) == pytest.approx(0.75)
    only = row("m", **{"eager": {"failed": "no"}, "ours": cell(6)})
    assert _cpu_page.ratio(only) is None
    one = row("m", **{"ONNX Runtime": cell(10), "ours": {"failed": "x"}, "ours, one stream": cell(5)})
    assert _cpu_page.ratio(one) == pytest.approx(0.5)


def test_the_page_marks_the_best_and_lists_what_is_missing():
    rows = [
        row("a", **{"ONNX Runtime": cell(10), "ours": cell(5, first=0.5)}),
        row("b", **{"ONNX Runtime": cell(4), "ours": cell(5)}),
        row("c", "looked-at", **{"ONNX Runtime": {"failed": "unsupported"}, "ours": cell(5)}),
    ]
    text = _cpu_page.page(rows, 1).markdown
    assert "| a | 10 (10–20) | **5 (5–10)** | 0.50 |" in text
    assert "| held-out, all sets | 2 | 2 | 0.79 | 1.25 (b) | 1 | 1 | 0.71 | 1.00 |" in text
    assert "- c, ONNX Runtime: unsupported" in text


class Attempts:
    """In place of a bench: what it measures, one attempt after the other."""

    def __init__(self, *cells):
        self.cells = list(cells)

    def measure(self, _case, _methods):
        return self.cells.pop(0)


def quiet(ms, spread):
    return {"ONNX Runtime": {**cell(ms), "p90": spread * ms}, "ours": {**cell(ms), "p90": 1.1 * ms}}


@pytest.mark.parametrize(("again", "attempts", "chosen"), [(0, 1, 5), (1, 2, 3), (2, 3, 4), (9, 3, 4)])
def test_the_quietest_attempt_stands_whatever_it_says(again, attempts, chosen):
    failed = {"ONNX Runtime": cell(1), "ours": {"failed": "no"}}
    bench = Attempts(quiet(5, 2.0), quiet(3, 1.7), quiet(4, 1.2), failed)
    found = cpu_latency.measured(bench, None, ["ours"], {"methods": {}}, again)
    assert (found[1], found[0]["ours"]["ms"]) == (attempts, chosen)


def test_an_attempt_that_failed_does_not_stand():
    first, failed = quiet(5, 2.0), {"ONNX Runtime": {**cell(1), "p90": 1}, "ours": {"failed": "no"}}
    assert cpu_latency.measured(Attempts(failed), None, ["ours"], {"methods": first}, 1) == (first, 2)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("onednn.conv2d_bias_relu", "convolution"),
        ("onednn.matmul_bias_add", "product"),
        ("FusedMatMul", "product"),
        ("FullyConnected brgemm_avx512_FP32", "product"),
        ("onednn.layer_norm", "normalization"),
        ("SkipLayerNormalization", "normalization"),
        ("onednn.softmax", "attention"),
        ("MultiHeadAttention", "attention"),
        ("ReorderInput", "moving"),
        ("transpose_reshape_gelu", "moving"),
        ("onednn.max_pool2d", "pooling"),
        ("QuickGelu", "elementwise"),
        ("multiply_add", "elementwise"),
    ],
)
def test_kernels_of_all_have_classes(name, expected):
    assert _cpu_page.class_of(name) == expected


def test_what_is_missing_is_where_ours_takes_longer():
    mine = {"onednn.conv2d": [3, 5e-3, 2e-3], "transpose": [2, 1e-3, 0.0], "onednn.matmul": [1, 1e-3, 1e-3]}
    peer = {"Conv": [3, 2e-3], "MatMul": [1, 2e-3]}
    assert _cpu_page.missing(mine, peer) == "convolution 5 against 2; moving 1 against 0"
    assert _cpu_page.missing(peer, {"Conv": [1, 1.0], "MatMul": [1, 1.0]}) == "no class of kernels"
    assert _cpu_page.longest(mine, 2) == "`onednn.conv2d` 5 (3, 2.5 x roofline), `transpose` 1 (2); of 7"
    rows = [row("m", **{"OpenVINO": {**cell(4), "kernels": peer}, "ours": {**cell(7), "kernels": mine}})]
    text = _cpu_page.page(rows, 1).markdown
    assert "| m | OpenVINO | 1.75 | convolution 5 against 2; moving 1 against 0 | `onednn.conv2d` 5" in text


def test_the_best_peer_is_asked_for_its_kernels():
    assert cpu_latency.best_method({"OpenVINO": cell(8), "eager": cell(9), "ours": cell(6)}) == "OpenVINO"
    assert cpu_latency.best_method({"OpenVINO": {"failed": "no"}, "ours": cell(6)}) == ""


def test_times_of_several_runs_are_medians_added_up_by_kind():
    runs = [("a.1", "a", 1.0), ("a.1", "a", 3.0), ("a.1", "a", 2.0), ("a.2", "a", 5.0), ("b", "b", 1.0)]
    assert _cpu_worker.grouped(runs) == {"a": [2, 7.0], "b": [1, 1.0]}
    assert [_cpu_worker.kind_of(name) for name in ("onednn.conv2d.12", "onednn.conv2d", "add")] == [
        "onednn.conv2d", "onednn.conv2d", "add",
    ]  # fmt: skip


def test_a_preparation_that_fails_is_a_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_latency.Bench, "run_preparation", lambda self, arguments: f"cannot {arguments[0]}")
    bench = cpu_latency.Bench(tmp_path, 1, 1.0, 1, 5.0, "v")
    case = Case("a/b", "files", "recurrent", (), lambda: (None, image()))
    assert bench.measure(case, ["ONNX Runtime", "ours"]) == {
        "ONNX Runtime": {"failed": "cannot export"}, "ours": {"failed": "cannot export"},
    }  # fmt: skip


def test_rows_are_kept(tmp_path):
    file = tmp_path / "rows.json"
    rows = {"a": row("a", ours=cell(5))}
    cpu_latency.save_rows(rows, file, None)
    assert cpu_latency.load_rows(file) == rows
    assert cpu_latency.load_rows(tmp_path / "none.json") == {}


def test_how_many_networks_are_measured(monkeypatch):
    def count(*words):
        monkeypatch.setattr("sys.argv", ["cpu_latency.py", *words])
        monkeypatch.setattr(Case, "missing", "")
        return [case.name for case in cpu_latency.chosen_cases(cpu_latency.arguments())]

    assert len(count()) == 16
    assert len(count("--quick")) == 8
    assert len(count("--sample", "0")) == len(cases())
    assert count("--case", "tv/vgg11") == ["tv/vgg11"]
    held = [cases()[name] for name in count("--half", "held-out", "--sample", "9")]
    assert {case.half for case in held} == {"held-out"}
    assert {case.kind for case in held} == {"convolutional", "hybrid", "transformer", "language", "recurrent"}
    assert not {case.name for case in held} & LARGE
