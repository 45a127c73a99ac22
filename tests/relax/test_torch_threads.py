"""Programs of PyTorch that several threads import at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")


def test_threads_leave_pytorchs_functions_as_they_were():
    import torch._export.utils as utils

    from tvm_sched.relax.importers.torch_frontend import decomposed

    before = utils._materialize_cpp_cia_ops
    programs = [torch.export.export(torch.nn.Linear(3, k + 2), (torch.ones(1, 3),)) for k in range(4)]
    with ThreadPoolExecutor(len(programs)) as threads:
        list(threads.map(decomposed, programs))
    assert utils._materialize_cpp_cia_ops is before
