"""torch's recurrent layers through torch.export, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tvm_sched.relax import compile  # noqa: E402


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize(
    "options", [{"batch_first": True}, {"num_layers": 2, "bidirectional": True}, {"bias": False}], ids=str
)
def test_like_torch(kind: str, options: dict[str, Any]) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = getattr(torch.nn, kind)(6, 20, **options)

        def forward(self, x: Any) -> Any:
            y, last = self.layer(x)
            return (y, *last) if isinstance(last, tuple) else (y, last)

    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(5, 3, 6)
    compiled = compile(torch.export.export(model, (x,)), "cpu1", "single")
    for mine, right in zip(compiled.run(x.numpy()), model(x), strict=True):
        np.testing.assert_allclose(mine, right.detach().numpy(), atol=1e-6)
    kernels = [o for o in compiled.problem.graph.operators if o.kind == f"{kind.lower()}_layer"]
    assert len(kernels) == options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)


@pytest.mark.filterwarnings("ignore:.*it has open dimensions")
def test_batch_is_open() -> None:
    """torch.export fixes the number of steps."""
    torch.manual_seed(0)
    model, dims = torch.nn.LSTM(6, 20, num_layers=2, batch_first=True).eval(), torch.export.Dim
    exported = torch.export.export(model, (torch.randn(2, 5, 6),), dynamic_shapes=({0: dims("batch")},))
    compiled = compile(exported, "cpu1", "single")
    for shape in ((1, 5, 6), (7, 5, 6)):
        x = torch.randn(shape)
        y, last = model(x)
        for mine, right in zip(compiled.run(x.numpy()), (y, *last), strict=True):
            np.testing.assert_allclose(mine, right.detach().numpy(), atol=1e-6)
