"""Parts by rows: of the batch, of tokens, of pictures; where they are offered, and that the values stay the same."""

import numpy as np
import pytest

from parallel_models import decoder, estimated, forced, given, offering, pictures, run_placed
from tvm_sched.relax import compile, make_problem
from tvm_sched.relax.decoders import decoder_variants
from tvm_sched.relax.ir.attributes import get_problem
from tvm_sched.relax.passes import Place
from tvm_sched.relax.problem.operator_graph import extract_variants
from tvm_sched.relax.variants import row_regions
from tvm_sched_runtime.problem.decoder_config import DecoderConfig
from tvm_sched_runtime.schedule import verify


@pytest.fixture
def small_regions(monkeypatch):
    """Regions of any size are worth it."""
    monkeypatch.setattr(row_regions, "LEAST_FLOPS", 0)
    monkeypatch.setattr(row_regions, "FLOPS_FOR_A_BYTE_COPIED", 0)


def lowered(mod, pieces=(2,), rows=True):
    return estimated(mod, "cpu3", offering(pieces, rows=rows))


def result_of(mod, way, value):
    problem = get_problem(mod)
    made = Place(schedule=forced(problem, way))(mod) if way else Place("single")(mod)
    return run_placed(made, value).numpy()


@pytest.mark.parametrize(("batch", "height", "way"), [(5, 5, "batch/2"), (1, 15, "rows/2"), (1, 16, "rows/3")])
@pytest.mark.sampled(9)
def test_pictures_by_batch_and_by_rows(batch, height, way, small_regions):
    """Also where they cannot be divided evenly."""
    mod = lowered(pictures(batch, height), (int(way[-1]),))
    value = np.random.default_rng(1).standard_normal((batch, 3, height, 6)).astype("float32")
    np.testing.assert_allclose(result_of(mod, way, value), result_of(mod, "", value), rtol=1e-4, atol=1e-4)


def test_a_batch_stays_in_parts_from_the_first_convolution_to_the_last(small_regions):
    problem = get_problem(lowered(pictures(4, 5), (2, 4)))
    (group,) = problem.variants.groups
    assert len(group.operators) == 5
    of = {alternative.name: alternative for alternative in group.alternatives}
    assert len(of["batch/4"].operators) == 4 * (5 + 1) + 1  # a part of the picture is cut off, and all are put together
    parameters = {n for o in of["batch/4"].operators for n in o.inputs if n.startswith("constant")}
    assert len(parameters) == 3  # each whole, and the same for all parts


def test_rows_end_where_too_many_would_overlap(small_regions):
    """Of 40 rows in 8 parts of 5 each convolution would add 14."""
    lower = {n: offering((n,), rows=True) for n in (2, 8)}
    two, eight = (extract_variants(lower[n](pictures(1, 40))).groups for n in (2, 8))
    assert [len(group.operators) for group in two] == [5]
    assert {len(group.operators) for group in eight} == {1}


@pytest.mark.thorough
def test_a_decoder_by_batch_on_emulated_gpus(small_regions):
    ids = given(decoder)
    expected = compile(decoder(), "v100-server", backend="emulated", scheduler="single").run(ids)
    problem = make_problem(decoder(), "v100-server", rows=True)
    made = compile(decoder(), "v100-server", backend="emulated", rows=True, schedule=forced(problem, "batch/2"))
    verify(made.problem, made.schedule)
    np.testing.assert_allclose(made.run(ids), expected, rtol=1e-3, atol=1e-4)


def test_tokens_by_rows_where_the_batch_is_one_prompt(small_regions):
    config = DecoderConfig(name="tiny", layers=1, hidden=32, heads=4, vocab=48, intermediate=64)
    _, groups = decoder_variants(config, 1, 8, pieces=(2,), rows=True)
    assert all("rows/2" in group.alternative_names for group in groups)


def test_cold_starts_are_offered_rows_of_large_batches_alone(small_regions):
    """Three operations for each byte of weights and row, against thousands in a convolution of many pictures."""
    offered = {
        (batch, rows): any(
            "batch/2" in group.alternative_names
            for group in extract_variants(offering((2,), rows=rows)(pictures(batch, 5))).groups
        )
        for batch in (2, 200)
        for rows in (False, True)
    }
    assert offered == {(2, False): False, (2, True): True, (200, False): True, (200, True): True}


def test_what_copies_more_than_it_computes_is_not_offered_by_rows(monkeypatch):
    monkeypatch.setattr(row_regions, "LEAST_FLOPS", 0)
    assert get_problem(lowered(pictures(4, 5))).variants is None
