"""Cases of `test_onednn_fastest.py` that other tests use, too."""

import json

import numpy as np
import tvm

from tvm_sched.relax.lower.kernel_libraries.onednn.describe import channels_last, dense
from tvm_sched.relax.lower.kernel_libraries.onednn.products import VERSION
from tvm_sched_runtime.core_library import function


def depthwise(channels, size):
    one = {"strides": [1, 1], "dilation": [0, 0], "padding_low": [1, 1], "padding_high": [1, 1]}
    image = channels_last((1, size, size, channels))
    weights = {**dense((channels, 1, 1, 3, 3)), "parameter": True}
    return {"primitive": "convolution", **one, "post": [{"name": "relu"}], "operands": [image, weights, image]}


def product(rows, terms, columns):
    weights = dense((terms, columns), parameter=True)
    return {"primitive": "matmul", "post": [], "operands": [dense((rows, terms)), weights, dense((rows, columns))]}


def call(kernel, *arguments):
    found = function("tvm_sched.make_onednn_module")(json.dumps({"version": VERSION, "kernels": {"k": kernel}}))
    result = tvm.runtime.tensor(np.full(kernel["operands"][-1]["dims"], np.nan, "float32"))
    found["k"](*map(tvm.runtime.tensor, arguments), result)
    return result.numpy()
