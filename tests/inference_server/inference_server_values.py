"""The model of these tests, computed by NumPy on whole numbers, copies of its artifact, and waiting for a state."""

import asyncio
import shutil
from types import SimpleNamespace

import numpy as np


def weights():
    return np.arange(-16, 16, dtype=np.float32).reshape(8, 4)


def expected(x, factor=1):
    return np.maximum(x @ (factor * weights()), 0)


def copy_artifact(source, target):
    """Copy an artifact with its parameters to a new place, as a whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".safetensors", ".so"):
        if source.with_suffix(suffix).exists():
            part = target.with_suffix(f"{suffix}.new")
            shutil.copy(source.with_suffix(suffix), part)
            part.replace(target.with_suffix(suffix))


class Backend:
    """In place of Triton's module for models in Python."""

    class Tensor:
        def __init__(self, name, value):
            self.name, self.value = name, value

        from_dlpack = classmethod(lambda cls, name, value: cls(name, np.from_dlpack(value)))

        def __dlpack__(self, **options):
            return self.value.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.value.__dlpack_device__()

    def __init__(self):
        self.InferenceResponse = lambda output_tensors, error=None: SimpleNamespace(tensors=output_tensors, error=error)
        self.TritonError = str

    def get_input_tensor_by_name(self, request, name):
        return next(tensor for tensor in request if tensor.name == name)


async def until(condition):
    """Wait until a condition holds; the event loop goes on meanwhile."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never happened")
