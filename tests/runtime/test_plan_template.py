"""Plan templates by hand: a layer with an open batch runs in the executor for every size, on two devices."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from runtime_plans import in_threads, register_kernels, tensor, tvm_ffi

from tvm_sched_runtime.errors import ExecutionError, InputError
from tvm_sched_runtime.runtime import ScheduledModule, make_module, to_numpy

W = np.arange(12, dtype="float32").reshape(4, 3) - 6


def _register():
    register_kernels()

    def product(x, w, y, size):
        assert size == x.shape[0] * 3
        to_numpy(y)[...] = to_numpy(x) @ to_numpy(w)

    tvm_ffi.register_global_func("tvm_sched.test.product", product, override=True)
    tvm_ffi.register_global_func(
        "tvm_sched.test.relu", lambda x, y: to_numpy(y).__setitem__(..., np.maximum(to_numpy(x), 0)), override=True
    )


def _template(**more):
    """Return relu(x[n, 4] @ w + y[n + 1, 3][:n]); the sum lies on the second device. ``m`` is another size of y."""

    def arena(name, device):
        return {**tensor(name, ["n", 3]), "source": {"kind": "arena", "device": device}}

    def step(queue, kind, inputs, outputs, waits, **fields):
        return {
            "queue": queue, "kind": kind, "name": f"{kind}{inputs}", "inputs": inputs, "outputs": outputs, "waits": waits,
            "duration_ns": 1000, **fields,
        }  # fmt: skip

    return {
        "format": "tvm_sched.plan", "version": 1, "name": "mlp", "backend": "cpu",
        "devices": [{"name": "cpu0"}, {"name": "cpu1", "memory_bytes": 1 << 30}],
        "queues": [{"name": "cpu0"}, {"name": "cpu1"}, {"name": "bus"}],
        "symbols": [{"name": "n"}, {"name": "m", "low": 1, "high": 9}],
        "conditions": [{"where": "rows of y", "size": ["%", "m", 2], "needed": 1}],
        "arguments": [tensor("x", ["n", 4]), tensor("y", ["m", ["+", "n", 1]])],
        "parameters": [tensor("w", [4, 3])],
        "outputs": [tensor("z", ["n", 3])],
        "buffers": [
            {**tensor("x", ["n", 4]), "source": {"kind": "argument", "index": 0}},
            {**tensor("w", [4, 3]), "source": {"kind": "parameter", "index": 0}},
            arena("a", 0), arena("b", 0), arena("there", 1),
            {**tensor("z", ["n", 3]), "source": {"kind": "output", "index": 0}},
        ],
        "steps": [
            step(0, "kernel", [0, 1], [2], [], function="tvm_sched.test.product", sizes=[["*", "n", 3]]),
            step(0, "kernel", [2, 2], [3], [], function="tvm_sched.test.add"),
            step(2, "copy", [3], [4], [1]),
            step(1, "kernel", [4], [5], [2], function="tvm_sched.test.relu"),
        ],
        **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def module():
    _register()
    return ScheduledModule(make_module([_template()], {}, {"w": W}))


def _inputs(n, m=1):
    return np.random.default_rng(n).integers(-3, 4, (n, 4)).astype("float32"), np.zeros((m, n + 1), "float32")


def _check(module, n):
    x, y = _inputs(n)
    np.testing.assert_array_equal(module.run(x, y)[0], np.maximum(2 * (x @ W), 0))


def test_every_size_is_right_in_any_order(module):
    module.configure(kept_sizes=2)
    for n in (1, 0, 5, 300, 2, 300, 5, 0, 1):  # the memory grows in between, and plans are forgotten
        _check(module, n)
    assert module.plans() == []
    assert module.template["name"] == "mlp"


def test_the_timeline_is_that_of_the_size(module):
    module.configure(trace=True)
    _check(module, 7)
    timeline = module.timeline()
    assert timeline["plan"] == "mlp[n=7, m=1]"
    assert [event["step"] for event in timeline["events"]] == [0, 1, 2, 3]
    assert module.plan_of_run("mlp[n=7, m=1]")["steps"][0]["duration_ns"] == 1000
    module.configure(trace=False)


def _anchored(name, n=None, **more):
    """Return the template for sizes up to ``n``."""
    symbols = _template()["symbols"]
    return _template(**{"name": name, "symbols": [symbols[0] | ({"anchor": n} if n else {}), symbols[1]]} | more)


def test_a_call_takes_the_first_template_whose_anchor_is_no_smaller():
    _register()
    module = ScheduledModule(
        make_module([_anchored("small", 3), _anchored("middle", 8), _anchored("large", 8)], {}, {"w": W})
    )
    module.configure(trace=True, kept_sizes=2)
    for n, name in (
        (3, "small"),
        (4, "middle"),
        (8, "middle"),
        (300, "large"),
        (0, "small"),
        (4, "middle"),
        (9, "large"),
    ):
        _check(module, n)
        assert module.timeline()["plan"] == f"{name}[n={n}, m=1]"
        assert module.plan_of_run(f"{name}[n={n}, m=1]")["symbols"][0].get("anchor") == {"small": 3}.get(name, 8)
    assert module.template["name"] == "small"


def test_templates_of_one_artifact_take_the_same_sizes():
    other = _anchored("b", 9, symbols=[{"name": "n"}, {"name": "m", "low": 1, "high": 8}])
    with pytest.raises(ValueError, match='plans "a" and "b" have symbols, but not the same ones with the same limits'):
        make_module([_anchored("a", 3), other], {}, {"w": W})
    with pytest.raises(ValueError, match=r'plan "a" takes all sizes, so that the later plan "b" .* is never chosen'):
        make_module([_anchored("a"), _anchored("b", 9)], {}, {"w": W})


def test_sizes_that_are_not_admissible_name_the_dimension_and_both_values(module):
    x, y = _inputs(3)
    for inputs, error, message in (
        ((x, _inputs(4)[1]), InputError, r"dimension 1 of input 'y' is 5; the model fixes it at 4"),
        ((x, np.zeros((11, 4), "float32")), InputError, r"\('m'\) is 11; sizes from 1 to 9 are allowed"),
        ((x[:, :2], y), InputError, r"dimension 1 of input 'x' is 2; the model fixes it at 4: x\[n, 4\]"),
        ((x[0], y), InputError, r"input 'x' has the shape \[4\]; the model takes x\[n, 4\]"),
        ((x.astype("float64"), y), InputError, "input 'x' is of the type float64; float32 is needed"),
        ((x, np.zeros((2, 4), "float32")), InputError, "rows of y is 0, and 1 is needed"),
    ):
        with pytest.raises(error, match=message):
            module.run(*inputs)
    _check(module, 3)


def test_runs_at_once_of_different_sizes(module):
    module.configure(instances=3, kept_sizes=2)

    def work(turn):
        for n in range(12):
            _check(module, (n * (turn + 3)) % 17)

    assert in_threads(work) == []
    module.configure(instances=1)


def test_a_kernel_that_fails_leaves_other_sizes_right():
    _register()
    fails = _template()
    fails["steps"][1]["function"] = "tvm_sched.test.sometimes"

    def sometimes(a, _, b):
        if a.shape[0] == 4:
            raise ValueError("no luck")
        to_numpy(b)[...] = 2 * to_numpy(a)

    tvm_ffi.register_global_func("tvm_sched.test.sometimes", sometimes, override=True)
    module = ScheduledModule(make_module([fails], {}, {"w": W}))
    for n in (2, 4, 2, 4, 6):
        if n == 4:
            with pytest.raises(ExecutionError, match="no luck"):
                module.run(*_inputs(n))
        else:
            _check(module, n)


def test_sizes_beyond_the_device_s_memory_are_refused_and_the_others_stay_right():
    _register()
    small = _template(devices=[{"name": "cpu0", "memory_bytes": 256}, {"name": "cpu1"}])
    module = ScheduledModule(make_module([small], {}, {"w": W}))
    _check(module, 4)
    with pytest.raises(InputError, match=r'device "cpu0" has 256 bytes, but the plan "mlp\[n=40, m=1\]" needs'):
        module.run(*_inputs(40))
    _check(module, 5)


def _with_large(size):
    """Return a module whose second device also holds a tensor of this size."""
    _register()
    tvm_ffi.register_global_func("tvm_sched.test.fill", lambda y, a: to_numpy(a).fill(1), override=True)
    plan = _template()
    del plan["devices"][1]["memory_bytes"]
    plan["buffers"] += [
        {**tensor("y", ["m", ["+", "n", 1]]), "source": {"kind": "argument", "index": 1}},
        {**tensor("large", [size]), "source": {"kind": "arena", "device": 1}},
    ]
    step = {**plan["steps"][3], "inputs": [6], "outputs": [7], "waits": [], "function": "tvm_sched.test.fill"}
    plan["steps"].append({**step, "name": "fill"})
    return ScheduledModule(make_module([plan], {}, {"w": W}))


def test_sizes_for_which_there_is_no_memory_lose_nothing():
    module = _with_large(["*", ["-", "m", 1], 1 << 48])
    module.configure(instances=2)

    def work(turn):
        for n in (3, 8, 3, turn):
            _check(module, n)
            with pytest.raises(ExecutionError, match=r'not enough memory for the \d+ bytes that .* on device "cpu1"'):
                module.run(*_inputs(n, 3))  # 2 PiB
            with pytest.raises(InputError, match='tensor "large" would have the shape'):
                module.run(*_inputs(n, 9))
            _check(module, n)

    assert in_threads(work) == []


def test_ctrl_c_in_a_run_leaves_other_sizes_right():
    _register()
    plan = _template()
    plan["steps"][1]["function"] = "tvm_sched.test.long"
    noticed = threading.Event()

    def double(a, _, b):
        if a.shape[0] == 4:
            os.kill(os.getpid(), signal.SIGINT)
            assert noticed.wait(20)
        to_numpy(b)[...] = 2 * to_numpy(a)

    def interrupt(*_):
        noticed.set()
        raise KeyboardInterrupt

    tvm_ffi.register_global_func("tvm_sched.test.long", double, override=True)
    module = ScheduledModule(make_module([plan], {}, {"w": W}))
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        for n in (2, 4, 2, 4, 6):
            noticed.clear()
            if n == 4:
                with pytest.raises(KeyboardInterrupt):
                    module.run(*_inputs(n))
            else:
                _check(module, n)
    finally:
        signal.signal(signal.SIGINT, before)


def test_sizes_that_alternate_allocate_once():
    module = _with_large(["*", "m", 1000])
    before = len(module.stages())
    for sizes in 3 * [(300, 1), (2, 9)]:  # the first take more of one device, the others of the other
        x, y = _inputs(*sizes)
        np.testing.assert_array_equal(module.run(x, y)[0], np.maximum(2 * (x @ W), 0))
    assert [stage["name"] for stage in module.stages()[before:]].count("memory") == 2


def test_parameters_remain_where_no_other_tensor_lies():
    """w lands after a and b were read: in a warm run, which leaves the copy out, they are written while it lies there."""
    _register()
    plan = _template()
    plan["buffers"].append({**tensor("here", [4, 3]), "source": {"kind": "arena", "device": 0}})
    kernels = plan["steps"][:3]
    last = {**plan["steps"][3], "waits": [2, 3], "inputs": [4, 6], "function": "tvm_sched.test.add_first"}
    copy = {**kernels[2], "name": "w", "inputs": [1], "outputs": [6], "waits": [2]}
    plan["steps"] = [*kernels, copy, last]

    def add_first(x, w, y):
        to_numpy(y)[...] = to_numpy(x) + to_numpy(w)[0]

    tvm_ffi.register_global_func("tvm_sched.test.add_first", add_first, override=True)
    module = ScheduledModule(make_module([plan], {}, {"w": W}))
    module.configure(resident=1.0)
    for n in (5, 5, 5, 2, 2):
        x, y = _inputs(n)
        np.testing.assert_array_equal(module.run(x, y)[0], 2 * (x @ W) + W[0])


def test_a_child_of_a_fork_takes_sizes_of_its_own(module):
    _check(module, 3)
    child = os.fork()
    if child == 0:
        try:
            _check(module, 3)
            _check(module, 11)
        finally:
            os._exit(int(not np.array_equal(module.run(*_inputs(2))[0], np.maximum(2 * (_inputs(2)[0] @ W), 0))))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    _check(module, 12)


def test_a_template_is_embedded_beside_plans_and_read_back(tmp_path):
    _register()
    plan = _template(name="three")
    for key in ("symbols", "conditions"):
        del plan[key]
    sizes = {"n": 3, "m": 1}
    for entry in (*plan["arguments"], *plan["outputs"], *plan["buffers"]):
        entry["shape"] = [4 if isinstance(d, list) else sizes.get(d, d) for d in entry["shape"]]
    for device in plan["devices"]:
        device["arena_bytes"] = 128
    for k, offset in ((2, 0), (3, 64), (4, 0)):
        plan["buffers"][k]["source"]["offset"] = offset
    plan["steps"][0]["sizes"] = [9]
    module = ScheduledModule(make_module([plan, _template()], {}, {"w": W}))
    module.configure(trace=True)
    for n, name in ((3, "three"), (4, "mlp[n=4, m=1]")):
        _check(module, n)
        assert module.timeline()["plan"] == name
    assert [each["name"] for each in module.plans()] == ["three"]
    plan["steps"][0]["sizes"] = ["n"]
    with pytest.raises(ValueError, match=r"steps\[0\]\.sizes\[0\]: found \"n\", expected"):
        ScheduledModule(make_module([plan], {}, {"w": W}))


def _segments(**more):
    """Return a plan that counts positive elements of x[6], and a template that takes as many of them and doubles them."""

    def kernel(name, inputs, outputs, function):
        return {
            "queue": 0, "kind": "kernel", "name": name, "function": f"tvm_sched.test.{function}", "inputs": inputs,
            "outputs": outputs, "waits": [], "duration_ns": 1000,
        }  # fmt: skip

    count, x = tensor("count", [2], "int64"), tensor("x", [6])
    first = {
        "format": "tvm_sched.plan", "version": 1, "name": "count", "backend": "cpu",
        "devices": [{"name": "cpu0", "arena_bytes": 0}], "queues": [{"name": "cpu0"}],
        "arguments": [x], "parameters": [], "outputs": [count],
        "buffers": [
            {**x, "source": {"kind": "argument", "index": 0}}, {**count, "source": {"kind": "output", "index": 0}},
        ],
        "steps": [kernel("count", [0], [1], "count")],
    }  # fmt: skip
    second = {
        **first, "name": "double", "devices": [{"name": "cpu0"}], "symbols": [{"name": "n", "high": 5}],
        "takes": [{"value": 1, "element": 1}, {"value": 0}],
        "arguments": [tensor("n", ["n"], "bool"), x], "outputs": [tensor("y", ["n"])],
        "buffers": [
            {**x, "source": {"kind": "argument", "index": 1}},
            {**tensor("y", ["n"]), "source": {"kind": "output", "index": 0}},
        ],
        "steps": [kernel("double", [0], [1], "positive")],
        **more,
    }  # fmt: skip

    def counted(x, count):
        to_numpy(count)[:] = -1, (to_numpy(x) > 0).sum() if to_numpy(x)[0] != -7 else -3

    def positive(x, y):
        to_numpy(y)[:] = 2 * to_numpy(x)[to_numpy(x) > 0]

    tvm_ffi.register_global_func("tvm_sched.test.count", counted, override=True)
    tvm_ffi.register_global_func("tvm_sched.test.positive", positive, override=True)
    about = {"plans": [{"name": "count", "results": [{"value": 2}, {"argument": 0}, {"value": 2}]}]}
    return ScheduledModule(make_module([first, second], about))


def test_a_segment_takes_sizes_that_the_one_before_it_computes():
    module = _segments()
    module.configure(trace=True)
    for x in ([1, -2, 3, 0, 0, 4], [0] * 6, [5, 4, 3, 2, 1, 0], [1, -2, 3, 0, 0, 4]):
        x = np.array(x, "float32")
        y, same, again = module.run(x)
        np.testing.assert_array_equal(y, 2 * x[x > 0])
        np.testing.assert_array_equal(same, x)
        np.testing.assert_array_equal(again, y)
        same[...], again[...] = 9, 9  # each result has memory of its own
        assert (x < 9).all()
        timeline = module.timeline()
        assert [event["step"] for event in timeline["events"]] == [0, 1]
        assert timeline["latency_ns"] == round(1e9 * module.latency()) >= timeline["events"][1]["end_ns"]
    with pytest.raises(ExecutionError, match=r"'n'\) is 6; sizes from 0 to 5 are allowed"):
        module.run(np.ones(6, "float32"))
    with pytest.raises(ExecutionError, match='the size "n" that the model computes is -3; 0 or more is allowed'):
        module.run(np.array([-7, 0, 0, 0, 0, 0], "float32"))
    np.testing.assert_array_equal(module.run(np.arange(-3, 3, dtype="float32"))[0], [2, 4])
    assert [output["shape"] for output in module.outputs()] == [[-1], [6], [-1]]
    assert [plan["name"] for plan in module.plans()] == ["count"]
    assert module.template is None


@pytest.mark.parametrize(
    ("takes", "message"),
    [
        ([{"value": 1}], "expected an entry for each of the plan's 2 arguments"),
        ([{"value": 2, "element": 1}, {"value": 0}], "value 2 is not there yet"),
    ],
)
def test_segments_that_take_what_is_not_there_are_refused(takes, message):
    with pytest.raises(ValueError, match=message):
        _segments(takes=takes)
