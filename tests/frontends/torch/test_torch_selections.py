"""Programs of torch.export in which data decide sizes: nonzero, masks and repeat_interleave, in scheduled segments."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tvm_sched.relax import compile  # noqa: E402
from tvm_sched_runtime.errors import ExecutionError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::tvm_frontends.errors.ModelWarning")


class Selections(torch.nn.Module):
    """Also what follows: a second selection out of the first, and sums over sizes that data decide."""

    def forward(self, x, mask, often):
        frames = torch.repeat_interleave(x, often, dim=0)
        large = frames[frames.sum(1) > 2]
        return torch.nonzero(x), x[mask] * 2, torch.masked_select(x, x > 1), x[x < 0], frames, large.sum(0)


@pytest.fixture(scope="module")
def compiled():
    x = torch.arange(12.0).reshape(3, 4) - 4
    arguments = (x, torch.tensor([True, False, True]), torch.tensor([2, 0, 3]))
    module = compile(torch.export.export(Selections(), arguments), "cpu2", "heft").module
    assert "tail" not in module.info()
    assert len(module.info()["segments"]) == 2
    return module


@pytest.mark.parametrize(
    ("mask", "often", "least"), [([1, 0, 1], [2, 0, 3], -4), ([0, 0, 0], [0, 0, 0], 0), ([1, 1, 1], [0, 20, 1], -12)]
)
def test_results_have_the_sizes_that_data_decide(compiled, mask, often, least):
    x = torch.arange(12.0).reshape(3, 4) + least
    arguments = (x, torch.tensor(mask, dtype=torch.bool), torch.tensor(often))
    found = compiled.run(*(np.asarray(each) for each in arguments))
    for one, right in zip(found, Selections()(*arguments), strict=True):
        np.testing.assert_array_equal(one, right.numpy(), strict=True)


def test_a_negative_count_is_an_error(compiled):
    x = np.zeros((3, 4), "float32")
    with pytest.raises(ExecutionError, match="is -1"):
        compiled.run(x, np.ones(3, bool), np.array([2, -1, 3]))
