"""Files with trained weights, as packages ship them, give the answers of ONNX Runtime; states are carried over calls."""

import numpy as np
import pytest
from _real_models import TESTED, compare, relative_error

from .conftest import TOLERANCE

pytest.importorskip("onnxscript", reason="the importer folds constants with it (extra onnx)")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is the peer of this test (extra dev)")


@pytest.mark.parametrize(
    "real", [pytest.param(real, id=real.name, marks=pytest.mark.xdist_group(real.package)) for real in TESTED]
)
@pytest.mark.sampled(6)
def test_values_equal_onnx_runtime(real):
    if not real.path().exists():
        pytest.skip(f"the package {real.package} is not installed (make test installs it)")
    outcomes = compare(real, real.path(), ("cpu1", "cpu2"))
    assert set(outcomes) == {"cpu1", "cpu2"}
    for topology, outcome in outcomes.items():
        assert outcome.error < TOLERANCE, topology


def test_a_comparison_can_fail():
    right = np.array([1.0, np.inf, -2.0], np.float32)
    assert relative_error(right, right) == 0
    assert relative_error(right + np.float32(0.5), right) == 0.25
    for wrong in (right[:2], right.astype(np.float64), np.array([1, 2, -2], np.float32)):
        assert relative_error(wrong, right) == np.inf
    assert relative_error(np.array([1, 2]), np.array([1, 3])) == np.inf
