"""Operators on the samples of PyTorch's own test database: right, or refused with our message."""

import zlib

import numpy as np
import pytest

from tvm_sched_runtime.errors import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which the database imports
GROUPS = 16
UNDEFINED = ("empty", "new_empty", "empty_like", "new_empty_strided", "empty_strided", "empty_permuted", "jiterator")


class Program(torch.nn.Module):
    """An operator with its arguments, of which tensors are inputs."""

    def __init__(self, sample, operator):
        super().__init__()
        self.operator, self.inputs = operator, []
        self.arguments = self._taken(((sample.input, *sample.args), dict(sample.kwargs)))

    def _taken(self, value):
        if isinstance(value, torch.Tensor):
            self.inputs.append(value.detach())
            return len(self.inputs) - 1, None
        if isinstance(value, dict):
            return {key: self._taken(each) for key, each in value.items()}
        return type(value)(map(self._taken, value)) if type(value) in (tuple, list) else (None, value)

    def _given(self, value, inputs):
        if isinstance(value, dict):
            return {key: self._given(each, inputs) for key, each in value.items()}
        if isinstance(value, tuple) and len(value) == 2 and (value[0] is None or type(value[0]) is int):
            return value[1] if value[0] is None else inputs[value[0]]
        return type(value)(self._given(each, inputs) for each in value)

    def forward(self, *inputs):
        positional, named = self._given(self.arguments, inputs)
        return self.operator(*positional, **named)


def arrays_of(result):
    """The results that have values, as arrays."""
    leaves = torch.utils._pytree.tree_leaves(result)
    return [leaf.detach().resolve_conj().resolve_neg().numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def cases(group):
    """Programs whose results are the same twice."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}"
        types = [d for d in (torch.float32, torch.int64, torch.bool) if op.supports_dtype(d, "cpu")]
        if zlib.crc32(name.encode()) % GROUPS != group or not types or op.name.startswith(UNDEFINED):
            continue
        torch.manual_seed(0)
        samples = list(op.sample_inputs("cpu", types[0]))
        program = Program(samples[len(samples) // 2], op.op).eval()
        try:
            once, again = ([each.tobytes() for each in arrays_of(program(*program.inputs))] for _ in range(2))
            exported = torch.export.export(program, tuple(program.inputs))
        except Exception:  # sparse tensors, or what cannot be exported
            continue
        if once and once == again and program.inputs:
            yield name, program, exported


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", range(GROUPS))
def test_samples_are_computed_or_refused(group):
    from tvm_sched.relax import compile

    right, refused, wrong = [], [], []
    for name, program, exported in cases(group):
        try:
            compiled = compile(exported, "cpu1", "single", cost_model="roofline", variants=False)
            results = compiled.run(*(each.resolve_conj().numpy() for each in program.inputs))
        except InputError:
            refused.append(name)
            continue
        results = results if isinstance(results, (list, tuple)) else [results]
        truths = arrays_of(program(*program.inputs))
        same = len(results) == len(truths) and all(
            np.shape(result) == truth.shape
            and result.dtype == truth.dtype
            and np.allclose(result, truth, rtol=1e-3, atol=1e-4, equal_nan=True)
            for result, truth in zip(results, truths, strict=True)
        )
        (right if same else wrong).append(name)
    assert not wrong
    assert len(right) > 2 * len(refused), refused
