"""Models in parts by rows: the values stay the same, and no part waits for another."""

import numpy as np
import pytest
import tvm
from tvm import relax

from parallel_models import CONFIG, decoder, given, pictures, run_placed
from tvm_sched.relax import compile
from tvm_sched.relax.decoders import decoder_graph, decoder_variants
from tvm_sched.relax.lower.kernel_libraries.kernel_library import VARIABLE
from tvm_sched.relax.passes import EstimateLatencies, LowerToKernels, Place, PrepareKernels, SplitRows
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem.decoder_config import DecoderConfig


def in_parts(mod, parts):
    lower = LowerToKernels(libraries=(), before_fusion=[SplitRows(parts)])
    return tvm.transform.Sequential([lower, PrepareKernels(), EstimateLatencies("cpu3", "roofline"), Place("heft")])(
        mod
    )


def expected(mod, value):
    """What TVM alone computes."""
    built = tvm.relax.build(mod, "llvm")
    return relax.VirtualMachine(built.jit() if hasattr(built, "jit") else built, tvm.cpu())["main"](
        tvm.runtime.tensor(value)
    ).numpy()


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: (decoder(), given(decoder)), 2),  # the batch
        (lambda: (decoder(shape=(1, 5)), given(decoder)[:1]), 2),  # tokens, in parts of 2 and 3
        (
            lambda: (decoder(JOINT, (1, 6)), np.arange(6, dtype="int32").reshape(1, 6)),
            3,
        ),  # queries, keys, values joined
        (lambda: (pictures(5), np.random.default_rng(1).standard_normal((5, 3, 5, 6)).astype("float32")), 5),
    ],
)
@pytest.mark.sampled(6)
def test_values_are_those_of_the_whole(make, parts):
    mod, value = make()
    np.testing.assert_allclose(
        run_placed(in_parts(mod, parts), value).numpy(), expected(mod, value), rtol=1e-4, atol=1e-4
    )


JOINT = DecoderConfig(
    name="joint", layers=1, hidden=32, heads=4, vocab=48, intermediate=64, norm="layer", joint_qkv=True, bias=True,
    gated=False, positions=16, tied=True,
)  # fmt: skip


def test_parts_of_a_batch_share_weights_and_nothing_else():
    whole, parts = decoder_graph(CONFIG, 4, 6), decoder_variants(CONFIG, 4, 6, row_parts=4)[0]
    index = parts.index
    joined = [o for o, before in enumerate(index.predecessors) if len(_parts_before(parts, o)) > 1]
    assert [parts.operators[o].kind for o in joined] == ["concatenate", "NT_matmul"]  # before the head, and the head
    assert sum(t.size for t in parts.tensors if t.kind == "parameter") == sum(
        t.size for t in whole.tensors if t.kind == "parameter"
    )
    assert sum(operator.flops for operator in parts.operators) == sum(operator.flops for operator in whole.operators)


def _parts_before(graph, o):
    """The lookups in the table of tokens, one for each part, on which an operator depends."""
    seen, ahead = set(), [o]
    while ahead:
        at = ahead.pop()
        ahead += [p for p in graph.index.predecessors[at] if p not in seen]
        seen.update(graph.index.predecessors[at])
    return {p for p in seen | {o} if graph.operators[p].kind.startswith("take")}


def test_of_split_tokens_only_keys_and_values_are_put_together():
    graph = decoder_variants(CONFIG, 1, 8, row_parts=2)[0]
    joins = [operator for operator in graph.operators if "concatenate" in operator.kind]
    assert len(joins) == 2 + 1  # keys, values, and what the head reads
    assert sum("softmax" in operator.kind for operator in graph.operators) == 2


def test_alternatives_are_offered_for_what_stays_whole():
    config = DecoderConfig(name="wide", layers=1, hidden=64, heads=4, vocab=4096, intermediate=128)
    whole = decoder_variants(config, 4, 8, pieces=(2,))[1]
    (group,) = decoder_variants(config, 4, 8, pieces=(2,), row_parts=2)[1]
    assert len(whole) > 1
    assert "columns/2" in group.alternative_names  # of the head


@pytest.mark.parametrize("parts", [0, 9])
def test_impossible_numbers_of_parts_are_refused(parts):
    with pytest.raises(InputError, match=r"row_parts is 0; 1 or more" if parts < 1 else r"in 9 parts by rows.*: 2x5"):
        LowerToKernels(libraries=(), before_fusion=[SplitRows(parts)])(decoder())


def test_kernels_of_libraries_are_refused():
    """Else the parts would be joined at each of them, without a word."""
    with pytest.raises(InputError, match=rf"row_parts is 2, but onednn computes 2 kernels .*{VARIABLE}= \(empty\)"):
        LowerToKernels(libraries=("onednn",), before_fusion=[SplitRows(2)])(decoder())


def test_compile_takes_parts(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    mod = decoder()
    compiled = compile(mod, "cpu2", "heft", row_parts=2, cost_model="roofline")
    assert compiled.run(given(decoder)).shape == (2, 5, CONFIG.vocab)
    assert len({placement.device for placement in compiled.schedule.placements}) == 2
