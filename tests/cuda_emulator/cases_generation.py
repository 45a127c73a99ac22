"""A Llama of two layers generates with its caches kept on emulated GPUs; `test_emulated_gpu` runs this where these are."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is the peer (make test installs it)")

from generation import Generator  # noqa: E402

from thorough import repeated_here  # noqa: E402
from tvm_sched.relax import compile  # noqa: E402
from tvm_sched.relax.autoload import register  # noqa: E402
from tvm_sched.schedulers import register as register_scheduler  # noqa: E402
from tvm_sched_bench.testing import random_schedule  # noqa: E402

PROMPT, STEPS = (512, 16) if repeated_here() else (48, 4)
pytestmark = pytest.mark.gpu
TOLERANCE = 1e-2  # of the greatest logit of PyTorch's float32


@register_scheduler("random")
def spread(problem, workload, options):
    """Operators on any of the devices, with transfers between them."""
    return random_schedule(problem, 5)


def reference(module, prompt):
    """Tokens and logits of PyTorch in float32, each token the best one after those before it."""
    full, ids, position, logits = copy.deepcopy(module).float(), prompt, 0, []
    caches = full.empty(torch.float32)
    for _ in range(STEPS + 1):
        with torch.no_grad():
            found, *caches = full(ids, torch.tensor([position]), *caches)
        logits.append(found)
        position, ids = position + ids.shape[1], found.argmax(-1, keepdim=True)
    return logits


@pytest.mark.parametrize("graph", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_llama_with_its_caches_on_the_gpus(graph):
    """Prefill, then a token a run: the caches never leave the GPUs."""
    register()
    torch.manual_seed(1)
    module = Generator(PROMPT + STEPS).eval().half()
    prompt, caches = torch.randint(60, (1, PROMPT)), module.empty(torch.float16)
    length = torch.export.Dim("length", min=1, max=PROMPT)
    exported = torch.export.export(
        module, (prompt, torch.tensor([0]), *caches), dynamic_shapes=({1: length}, None, (None,) * len(caches))
    )
    several = os.environ["FAKE_CUDA_DEVICES"] == "4"
    names = [spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    made = compile(
        exported,
        "v100-server",
        "random" if several else "single",
        backend="cuda",
        input_shapes={names[0]: (1, {PROMPT, 1})},
        states={name: k + 1 for k, name in enumerate(names[2:])},
    ).module
    made.configure(graph=graph, resident=1.0, devices=[0, 1, 2, 3] if several else [0, 0, 0, 0])
    assert [state["name"] for state in made.states()] == names[2:]
    homes = {state["device"] for plan in made.plans() for state in plan["states"]}
    assert (len(homes) > 1) == several, "the caches lie where the schedule computes them"
    ids, position = prompt, 0
    for expected in reference(module, prompt):
        (found,) = made.run(ids.numpy(), np.array([position]))
        scale = float(expected.abs().max())
        assert float((torch.from_numpy(found.astype("float32")) - expected).abs().max()) < TOLERANCE * scale
        position, ids = position + ids.shape[1], expected.argmax(-1, keepdim=True)
    written = made.get_state(names[2])
    assert np.any(written[0, :, position - 1])
    assert np.isfinite(written).all()
