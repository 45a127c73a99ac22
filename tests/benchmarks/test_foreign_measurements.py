"""The page that holds predictions against times which others published."""

import foreign_measurements as page
import pytest


def test_points_are_in_milliseconds(tmp_path):
    file = tmp_path / "points.toml"
    file.write_text(
        "cards = { A = [8, 100, 10, 20, 10, 0] }\n"
        '[[sources]]\nname = "s"\nwhere = "w"\nruntime = "vllm"\nunit = "tokens/s"\n'
        'points = [["llama-2-7b", "fp16", "A", 1, "decode", 64, 50], ["llama-2-7b", "fp16", "A", 1, "prefill", 512, 1024]]\n'
    )
    points, cards, where = page.read_points(file)
    assert [point.measured for point in points] == [20, 500]
    assert points[1].case == "llama-2-7b fp16, prefill 512, A"
    assert where == {"s": "w"}
    assert cards["A"][1] == 100


def test_a_token_takes_at_least_the_time_of_its_weights():
    points, cards, _ = page.read_points(page.DATA)
    point = next(p for p in points if (p.model, p.dtype, p.card) == ("llama-2-7b", "fp16", "RTX 4090"))
    # 6.6 billion weights of 2 bytes (without the embedding) at 1008 GB/s
    assert page.predict(point, cards[point.card], "roofline").time >= 6.6e9 * 2 / 1008e9 * 1e3


def test_what_does_not_fit_has_no_prediction():
    point = page.Point("s", "vllm", "llama-2-70b", "fp16", "L4", 1, "decode", 64, 1.0)
    assert page.predict(point, [24, 300, 30.3, 121, 25, 0], "roofline") is None


@pytest.mark.parametrize(
    "networks", [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.thorough)]
)
def test_the_package_has_the_factors_that_the_data_give(networks):
    points, cards, _ = page.read_points(page.DATA)
    tuned = [p for p in points if page.half(p.source) == page.HALVES[0] and p.model.startswith("resnet") == networks]
    found = page.fitted_factors((p, {"learned": page.predict(p, cards[p.card], "learned")}) for p in tuned)
    assert found == {kind: factors for kind, factors in page.FITTED.items() if (kind.work == "graph") == networks}


def test_figures_of_the_text_are_those_of_the_rows():
    points, _, _ = page.read_points(page.DATA)
    kind = page.Kind("llama.cpp", "prompt", False)
    rows = [(p, {each: page.Predicted(2 * p.measured, kind, None, None) for each in page.COSTS}) for p in points]
    text = page.notes(rows)
    assert text.count("2.00 to 2.00") == 9
    assert page.programs_apart(points) in text


def test_programs_are_compared_by_cases_that_two_sources_have():
    case = ("vllm", "llama-2-7b", "fp16", "A", 1, "decode", 64)
    points = [page.Point(source, *case, measured) for source, measured in (("a", 10.0), ("b", 15.0))]
    other = page.Point("a", *case[:-1], 128, 1.0)
    assert page.programs_apart([*points, other]).startswith(
        "of 1 cases that two sources have, the slower takes 1.50 to 1.50"
    )
    assert page.programs_apart([points[0], other]) == "no two sources here have the same case"


def test_coverage():
    point = page.Point("s", "vllm", "llama-2-7b", "fp16", "A", 1, "decode", 64, 10.0)
    kind, narrow = page.Kind("", "token", False), (8.5, 9.5)
    inside, outside, none = (
        {"learned": page.Predicted(9.0, kind, ends and narrow, ends)} for ends in ((8.0, 11.0), (8.0, 9.5), None)
    )
    rows = [(point, inside), (point, outside), (point, none)]
    assert page.covered(rows, "learned") == "50%"
    assert page.covered(rows, "learned", "of_kernels") == "0%"
    assert page.covered([(point, none)], "learned") == ""
    assert [line[:6] for line in page.by_kind(rows)] == [
        ["other runtimes, token", point.part, "1", "3", "0%", "50%"], ["all kinds", point.part, "1", "3", "0%", "50%"],
    ]  # fmt: skip


def test_an_encoder_is_one_run_of_all_its_tokens():
    _, cards, _ = page.read_points(page.DATA)
    point = page.Point("s", "exo", "bert-base", "fp16", "A30", 1, "prefill", 128, 1.0, 8)
    found = page.predict(point, cards["A30"], "roofline")
    assert found.kind == ("", "encoder", False)
    # 85 million weights and 12 layers of attention over all 128 tokens: operations of 1024 tokens at 165 TFLOP/s
    assert found.time >= 2 * 1024 * (85e6 + 12 * 2 * 128 * 768) / 165e12 * 1e3


def test_summary():
    assert page.summary([2.0, 0.5, 1.0, 1.2]) == ["4", "1.05", "60%", "50%"]
    assert page.summary([]) == ["0", "", "", ""]


def test_the_data_name_known_cards_and_each_source_once():
    points, cards, where = page.read_points(page.DATA)
    assert {point.card for point in points} <= cards.keys()
    assert len(points) >= 80
    assert len(where) >= 10
    assert min(point.measured for point in points) > 0


@pytest.mark.parametrize(("card", "count"), [("A100 SXM 80GB", 8), ("RTX 3090", 2)])
def test_machines_have_links_where_the_card_has(card, count):
    _, cards, _ = page.read_points(page.DATA)
    machine = page.machine(card, count, cards[card])
    assert len(machine.devices) == count
    assert machine.peer_access == bool(machine.switches) == (card != "RTX 3090")
