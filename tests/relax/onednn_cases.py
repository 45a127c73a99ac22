"""Small modules whose operators oneDNN takes, and some that it leaves to TVM, with the kinds of the kernels expected."""

import numpy as np
import tvm
from tvm import relax

op = relax.op


def constant(*shape, seed=5, dtype="float32"):
    return relax.const(tvm.runtime.tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype)))


def channels(count, seed=6):
    return constant(1, count, 1, 1, seed=seed)


def batch_norm(x, count):
    scale = relax.const(np.random.default_rng(9).uniform(0.5, 2, (1, count, 1, 1)).astype("float32"))
    return op.add(
        op.multiply(op.divide(op.subtract(x, channels(count, 7)), scale), channels(count, 8)), channels(count, 9)
    )


def lrn(x, size=5):
    mean = op.nn.avg_pool3d(
        op.expand_dims(op.multiply(x, x), 1), (size, 1, 1), padding=(size // 2, 0, 0), count_include_pad=True
    )
    scale = op.add(op.multiply(op.squeeze(mean, [1]), relax.const(0.3, "float32")), relax.const(2.0, "float32"))
    return op.divide(x, op.power(scale, relax.const(0.75, "float32")))


def shuffle(x, groups):
    n, c, h, w = (int(d) for d in x.ty.shape)
    split = op.reshape(x, (n, groups, c // groups, h, w))
    return op.reshape(op.permute_dims(split, [0, 2, 1, 3, 4]), (n, c, h, w))


def convolution(x, out=8, kernel=3, **options):
    groups = options.get("groups", 1)
    height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    return op.nn.conv2d(x, constant(out, int(x.ty.shape[1]) // groups, height, width), **options)


def line(x, out, kernel, **options):
    return op.nn.conv1d(x, constant(out, int(x.ty.shape[1]) // options.get("groups", 1), kernel), **options)


def volume(x, out, kernel, **options):
    return op.nn.conv3d(x, constant(out, int(x.ty.shape[1]), kernel, kernel, kernel), **options)


def transposed(x, out, kernel, **options):
    weights = constant(int(x.ty.shape[1]), out // options.get("groups", 1), kernel, kernel)
    return op.nn.conv2d_transpose(x, weights, **options)


def steps(builder, x, *functions):
    """Each function's result bound to a variable, as importers do it."""
    for function in functions:
        x = builder.emit(function(x))
    return x


IMAGE = (1, 6, 15, 13)
CASES = {
    # name: shapes of the inputs, function of a builder and the inputs, kinds of the operators
    "plain": ([IMAGE], [lambda x: convolution(x, padding=1)], "conv2d"),
    "1x1": ([IMAGE], [lambda x: convolution(x, kernel=1)], "conv2d"),
    "batch of 3": ([(3, 6, 9, 9)], [lambda x: convolution(x, padding=1)], "conv2d"),
    "stride 2": ([IMAGE], [lambda x: convolution(x, strides=2, padding=1)], "conv2d"),
    "unequal strides": ([IMAGE], [lambda x: convolution(x, strides=(2, 3))], "conv2d"),
    "dilation": ([IMAGE], [lambda x: convolution(x, dilation=(2, 3), padding=2)], "conv2d"),
    "asymmetric padding": ([IMAGE], [lambda x: convolution(x, padding=(0, 1, 2, 3))], "conv2d"),
    "kernel 1x7": ([IMAGE], [lambda x: convolution(x, kernel=(1, 7), padding=(0, 3))], "conv2d"),
    "one column": (
        [(2, 6, 13, 1)],
        [
            lambda x: convolution(x, out=8, kernel=(4, 1), padding=(1, 0, 2, 0), strides=(2, 1)),
            lambda x: op.add(x, channels(8)),
            op.nn.relu,
        ],
        "conv2d_bias_relu",
    ),
    "one column, dilated, in groups": (
        [(1, 6, 13, 1)],
        [lambda x: convolution(x, out=9, kernel=(3, 1), dilation=(2, 1), groups=3)],
        "conv2d",
    ),
    "one column, depthwise": (
        [(1, 16, 13, 1)],
        [lambda x: convolution(x, out=16, kernel=(3, 1), padding=(1, 0), groups=16)],
        "conv2d",
    ),
    "one column, transposed": (
        [(1, 16, 9, 1)],
        [lambda x: transposed(x, 12, 3, strides=(2, 1), padding=(1, 1, 1, 1))],
        "conv2d_transpose",
    ),
    "groups": ([IMAGE], [lambda x: convolution(x, out=9, groups=3, padding=1)], "conv2d"),
    "depthwise": ([(1, 16, 9, 9)], [lambda x: convolution(x, out=16, groups=16, padding=1)], "conv2d"),
    "depthwise, odd": ([(1, 7, 9, 9)], [lambda x: convolution(x, out=14, groups=7, padding=1)], "conv2d"),
    "image of 1x1": ([(1, 8, 1, 1)], [lambda x: convolution(x, kernel=1)], "conv2d"),
    "images of 1x1": (
        [(3, 8, 1, 1)],
        [lambda x: convolution(x, kernel=1), lambda x: op.add(x, channels(8))],
        "conv2d_bias",
    ),
    "image of 1x1 and what follows": (
        [(1, 8, 1, 1)],
        [lambda x: convolution(x, kernel=1), lambda x: op.add(x, channels(8)), op.nn.silu],
        "conv2d_bias_silu",
    ),
    "bias and relu": ([IMAGE], [convolution, lambda x: op.add(x, channels(8)), op.nn.relu], "conv2d_bias_relu"),
    "batch norm": ([IMAGE], [convolution, lambda x: op.add(x, channels(8)), lambda x: batch_norm(x, 8)], "conv2d_bias"),
    "sigmoid, then scale": (
        [IMAGE],
        [convolution, op.sigmoid, lambda x: op.multiply(x, channels(8))],
        "conv2d_sigmoid_multiply",
    ),
    "clip": ([IMAGE], [convolution, lambda x: op.clip(x, 0.0, 6.0)], "conv2d_clip"),
    "scalars": (
        [IMAGE],
        [convolution, op.tanh, lambda x: op.subtract(x, relax.const(0.5, "float32"))],
        "conv2d_tanh_linear",
    ),
    "constant minus it": ([IMAGE], [convolution, lambda x: op.subtract(channels(8), x)], "conv2d"),
    "local response": (
        [(1, 12, 7, 5)],
        [lambda x: convolution(x, out=12), lrn, lambda x: convolution(x, out=3)],
        "lrn",
    ),
    "shuffle": (
        [(1, 6, 5, 4)],
        [lambda x: convolution(x, out=12, kernel=1, groups=3), lambda x: shuffle(x, 3), lambda x: convolution(x)],
        "conv2d",
    ),
    "max pool": ([IMAGE], [lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1))], "max_pool2d"),
    "max pool, ceil": ([(1, 5, 14, 12)], [lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), ceil_mode=True)], "max_pool2d"),
    "max pool after conv": (
        [IMAGE],
        [convolution, lambda x: op.nn.max_pool2d(x, (2, 3), (2, 2), (0, 1, 1, 1))],
        "max_pool2d",
    ),
    "avg pool": ([IMAGE], [lambda x: op.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1))], "avg_pool2d"),
    "avg pool, padding counts": (
        [IMAGE],
        [lambda x: op.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1), count_include_pad=True)],
        "avg_pool2d",
    ),
    "avg pool, ceil": ([(1, 5, 14, 12)], [lambda x: op.nn.avg_pool2d(x, (3, 3), (2, 2), ceil_mode=True)], "avg_pool2d"),
    "mean of images": ([IMAGE], [convolution, lambda x: op.mean(x, [2, 3], True)], "mean"),
    "mean of images, flat": ([IMAGE], [convolution, lambda x: op.mean(x, [2, 3])], "mean"),
    "conv1d": ([(2, 6, 17)], [lambda x: line(x, 8, 3, padding=1, strides=2), op.nn.gelu], "conv1d_gelu"),
    "conv1d in groups, dilated": ([(1, 6, 17)], [lambda x: line(x, 8, 3, dilation=2, groups=2)], "conv1d"),
    "conv1d, then rows": (
        [(1, 6, 17)],
        [lambda x: line(x, 8, 3), lambda x: op.permute_dims(x, [0, 2, 1]), op.exp],
        "conv1d_exp",
    ),
    "conv3d": ([(1, 3, 5, 7, 6)], [lambda x: volume(x, 4, 3, padding=1), op.nn.relu], "conv3d_relu"),
    "transposed": ([IMAGE], [lambda x: transposed(x, 8, 2, strides=2), op.nn.relu], "conv2d_transpose_relu"),
    "transposed, output padding": (
        [IMAGE],
        [
            lambda x: transposed(x, 4, 3, strides=2, padding=1, output_padding=1),
            lambda x: op.multiply(x, channels(4)),
            lambda x: op.add(x, channels(4, 7)),
        ],
        "conv2d_transpose_bias",
    ),
    "transposed, groups": (
        [IMAGE],
        [
            lambda x: transposed(x, 8, 4, strides=2, padding=(1, 0, 2, 1), groups=2),
            lambda x: op.multiply(x, channels(8)),
        ],
        "conv2d_transpose_multiply",
    ),
    "transposed, one channel": (
        [IMAGE],
        [lambda x: transposed(x, 1, 2, strides=2), op.sigmoid],
        "matmul",
    ),
    "transposed, few channels in an oblong": (
        [IMAGE],
        [convolution, lambda x: op.nn.conv2d_transpose(x, constant(8, 3, 2, 4), strides=(2, 4)), op.nn.relu],
        "matmul",
    ),
    "transposed, one channel, windows overlap": (
        [IMAGE],
        [lambda x: transposed(x, 1, 4, strides=2, padding=1), op.sigmoid],
        "conv2d_transpose_sigmoid",
    ),
    "transposed, dilated": ([IMAGE], [lambda x: transposed(x, 4, 3, dilation=2)], "conv2d_transpose"),
    "transposed in one dimension": (
        [(1, 6, 17)],
        [lambda x: op.nn.conv1d_transpose(x, constant(6, 4, 4), strides=2, padding=1)],
        "conv1d_transpose",
    ),
    "transposed in three dimensions": (
        [(1, 3, 4, 5, 6)],
        [lambda x: op.nn.conv3d_transpose(x, constant(3, 4, 2, 2, 2), strides=2)],
        "matmul",
    ),
    "slopes": (
        [IMAGE],
        [convolution, lambda x: op.nn.prelu(x, constant(8), 1), lambda x: op.nn.prelu(x, constant(1), 1)],
        "conv2d_prelu_relu",
    ),
    "max pool of lines": ([(1, 5, 17)], [lambda x: op.nn.max_pool1d(x, 3, 2, 1)], "max_pool1d"),
    "avg pool of volumes": ([(1, 3, 5, 7, 6)], [lambda x: op.nn.avg_pool3d(x, 2, 2)], "avg_pool3d"),
    "global pool": ([IMAGE], [convolution, lambda x: op.nn.adaptive_avg_pool2d(x, 1)], "mean"),
    "global pool before any convolution": ([IMAGE], [lambda x: op.nn.adaptive_avg_pool2d(x, 1)], "mean"),
    "resized": (
        [IMAGE],
        [convolution, lambda x: op.image.resize2d(x, (26, 22), method="nearest_neighbor"), lambda x: convolution(x, 4)],
        "conv2d",
    ),
    "padded and cut": (
        [IMAGE],
        [
            convolution,
            lambda x: op.nn.pad(x, [0, 0, 1, 0, 2, 3, 0, 1]),
            lambda x: op.strided_slice(x, [1, 3], [2, 1], [8, 9]),
            lambda x: op.max(x, 1, True),
            lambda x: convolution(x, 4),
        ],
        "conv2d",
    ),
    "softmax": ([(6, 33)], [lambda x: op.nn.softmax(x)], "softmax"),
    "softmax along 1": ([(2, 5, 7)], [lambda x: op.nn.softmax(x, axis=1)], "softmax"),
    "log softmax": ([(6, 33)], [lambda x: op.nn.log_softmax(x)], "log_softmax"),
    "layer norm": (
        [(2, 7, 33)],
        [lambda x: op.nn.layer_norm(x, constant(33), constant(33, seed=1), axes=[-1], epsilon=1e-5)],
        "layer_norm",
    ),
    "matmul": ([(7, 13)], [lambda x: op.matmul(x, constant(13, 37))], "matmul"),
    "matmul of 3 dimensions": ([(2, 5, 8)], [lambda x: op.matmul(x, constant(8, 24))], "matmul"),
    "linear and gelu": (
        [(1, 5, 8)],
        [
            lambda x: op.reshape(x, (5, 8)),
            lambda x: op.matmul(x, constant(8, 24)),
            lambda x: op.add(constant(24), x),
            lambda x: op.reshape(x, (1, 5, 24)),
            op.nn.gelu,
        ],
        "matmul_bias_gelu",
    ),
    "silu": ([(5, 8)], [lambda x: op.matmul(x, constant(8, 24)), op.nn.silu], "matmul_silu"),
    "transposed weights": ([(5, 8)], [lambda x: op.matmul(x, op.permute_dims(constant(24, 8)))], "matmul"),
}
SEVERAL = {
    "residual": (
        [IMAGE, (1, 8, 15, 13)],
        lambda b, x, y: b.emit(op.nn.relu(b.emit(op.add(y, steps(b, x, lambda v: convolution(v, padding=1)))))),
        "conv2d_add_relu",
    ),
    "one column and a sum": (
        [(1, 8, 13, 1), (1, 8, 13, 1)],
        lambda b, x, y: b.emit(op.add(y, b.emit(convolution(x, kernel=(3, 1), padding=(1, 0))))),
        "conv2d_add",
    ),
    "two convolutions added": (
        [IMAGE, IMAGE],
        lambda b, x, y: b.emit(op.add(b.emit(convolution(x)), b.emit(convolution(y)))),
        "conv2d_add",
    ),
    "used twice": (
        [IMAGE],
        lambda b, x: (lambda c: b.emit(op.add(b.emit(op.cos(c)), c)))(b.emit(convolution(x))),
        "conv2d",
    ),
    "sum of a stack": (
        [IMAGE, (1, 8, 13, 11)],
        lambda b, x, y: b.emit(op.sum(b.emit(op.stack([b.emit(convolution(x)), y], 0)), 0)),
        "conv2d_add",
    ),
    "concat": (
        [IMAGE, (1, 5, 13, 11)],
        lambda b, x, y: b.emit(op.concat([b.emit(convolution(x)), y, y], 1)),
        "concat",
    ),
    "concat of rows": ([(3, 5), (4, 5)], lambda b, x, y: b.emit(op.concat([x, y], 0)), "concat"),
    "weights not known": ([IMAGE, (8, 6, 3, 3)], lambda b, x, y: b.emit(op.nn.conv2d(x, y)), "conv2d"),
    "gate of each channel": (
        [IMAGE, (1, 8, 1, 1)],
        lambda b, x, y: steps(b, x, convolution, lambda v: op.multiply(v, y), op.sigmoid),
        "conv2d_multiply_sigmoid",
    ),
    "masked scores": (
        [(2, 3, 7, 13), (2, 3, 13, 7), (1, 1, 7, 7)],
        lambda b, x, y, z: steps(b, x, lambda v: op.matmul(v, y), lambda v: op.add(v, z)),
        "matmul",
    ),
    "split and joined": (
        [(1, 6, 9, 7)],
        lambda b, x: (
            lambda parts: b.emit(op.concat([parts[1], b.emit(convolution(parts[0], 4, padding=1)), parts[0]], 1))
        )(b.emit(op.split(b.emit(convolution(x, 8, padding=1)), 2, 1))),
        "concat",
    ),
    "matmul of activations": ([(7, 13), (13, 5)], lambda b, x, y: b.emit(op.matmul(x, y)), "matmul"),
    "batched": ([(2, 3, 7, 13), (2, 3, 13, 5)], lambda b, x, y: b.emit(op.matmul(x, y)), "matmul"),
    "batch broadcast": ([(2, 3, 7, 13), (3, 13, 5)], lambda b, x, y: b.emit(op.matmul(x, y)), "matmul"),
    "batch of one": ([(1, 7, 13), (4, 13, 5)], lambda b, x, y: b.emit(op.matmul(x, y)), "matmul"),
    "batched, scaled": (
        [(3, 7, 13), (3, 13, 5), (3, 7, 5)],
        lambda b, x, y, z: steps(
            b,
            x,
            lambda v: op.matmul(v, y),
            lambda v: op.divide(v, relax.const(3.0, "float32")),
            lambda v: op.add(v, z),
        ),
        "matmul_linear_add",
    ),
    "linear with residual": (
        [(5, 8), (1, 5, 24)],
        lambda b, x, y: steps(
            b,
            x,
            lambda v: op.matmul(v, constant(8, 24)),
            lambda v: op.reshape(v, (1, 5, 24)),
            lambda v: op.add(v, y),
        ),
        "matmul_add",
    ),
}
SEVERAL["product of two activations with a constant bias"] = (
    [(4, 5), (5, 6)],
    lambda b, x, y: b.emit(relax.op.add(b.emit(op.matmul(x, relax.op.tanh(y))), constant(6))),
    "matmul_bias",
)
for _axes in ([0, -2, -1, 1], [0, 2, 3, 1], None):  # as torch.export writes it, from the end; without axes, reversed
    SEVERAL[f"product beside a transposition by {_axes}"] = (
        [(4, 5), (1, 8, 2, 8)],
        lambda b, x, y, axes=_axes: b.emit(
            relax.Tuple([b.emit(op.matmul(x, constant(5, 6))), b.emit(op.permute_dims(y, axes))])
        ),
        "matmul",
    )
    SEVERAL[f"convolution before a transposition by {_axes}"] = (
        [IMAGE],
        lambda b, x, axes=_axes: steps(b, x, convolution, lambda v: op.permute_dims(v, axes), lambda v: op.add(v, v)),
        "conv2d",
    )
LEFT_ALONE = {
    "float64": ([IMAGE], "float64", lambda b, x: b.emit(op.nn.conv2d(x, constant(4, 6, 3, 3, dtype="float64")))),
    "int64": ([(4, 5), (5, 6)], "int64", lambda b, x, y: b.emit(op.matmul(x, y))),
    "vector": ([(5,), (5, 6)], "float32", lambda b, x, y: b.emit(op.matmul(x, y))),
    "avg pool, ceil and padding counts": (
        [(1, 5, 14, 12)],
        "float32",
        lambda b, x: b.emit(op.nn.avg_pool2d(x, (3, 3), (2, 2), ceil_mode=True, count_include_pad=True)),
    ),
}


def module(make, shapes, dtype="float32"):
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{k}", relax.TensorType(shape, dtype)) for k, shape in enumerate(shapes)]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(make(builder, *variables))
        builder.emit_func_output(result)
    return builder.get()


def arrays(shapes, dtype="float32"):
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(shape) * 2).astype(dtype) for shape in shapes]
