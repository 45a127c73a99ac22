"""What goes wrong is said with its cause, and the next run works."""

from __future__ import annotations

import gc
import os
import struct
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import tvm_ffi
from runtime_plans import PlanBuilder, add_and_double

from tvm_sched_runtime.errors import ExecutionError, InputError
from tvm_sched_runtime.runtime import load, make_module
from tvm_sched_runtime.runtime.artifact import check_library, seal
from tvm_sched_runtime.runtime.machine import cores, differences

ONES = np.ones(4, "float32")
X = np.arange(4, dtype="float32")


def blocking_module(started, go_on):
    """x + w on the first device by a kernel that waits for ``go_on``; then the rest of `add_and_double`."""

    def wait(a, b, out):
        started.set()
        go_on.wait(20)
        np.from_dlpack(out)[...] = np.from_dlpack(a) + np.from_dlpack(b)

    tvm_ffi.register_global_func("tvm_sched.test.wait", wait, override=True)
    return add_and_double(function="tvm_sched.test.wait").module({"w": ONES})


def test_more_than_the_devices_memory_is_refused_when_loaded():
    builder = add_and_double()
    builder.plan["devices"][1]["memory_bytes"] = 10
    with pytest.raises(ValueError, match=r'devices\[1\].memory_bytes: device "cpu1" has 10 bytes, but the plan needs'):
        builder.module()
    builder.plan["devices"][1]["memory_bytes"] = builder.plan["devices"][1]["arena_bytes"]
    builder.module()


def test_memory_that_cannot_be_had_names_the_device():
    builder = add_and_double()
    builder.plan["devices"][1]["arena_bytes"] = 1 << 60
    module = builder.module({"w": ONES})
    for _ in range(2):
        with pytest.raises(ExecutionError, match=r'not enough memory for the 1152921504606846976 bytes.*device "cpu1"'):
            module.run(X)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    tvm = pytest.importorskip("tvm")
    from tvm import te

    a, b = (te.placeholder((4,), "float32", n) for n in "ab")
    kernel = te.create_prim_func([a, b, te.compute((4,), lambda i: a[i] + b[i])]).with_attr("global_symbol", "add4")
    library = tvm.compile(tvm.IRModule({"add4": kernel}), "llvm")
    library = getattr(library, "mod", library)
    builder = PlanBuilder()
    x, w, out = builder.argument("x", [4]), builder.parameter("w", [4]), builder.output([4])
    builder.kernel(0, "add4", [x, w], [out])
    needs = {"backend": "cpu", "devices": [{"name": f"cpu{k}"} for k in range(1000)]}
    ours = make_module([builder.plan], {"needs": needs, "versions": {"apache-tvm": "0.1.0"}}, {"w": ONES})
    ours.import_module(library)
    path = tmp_path_factory.mktemp("faults") / "model.so"
    ours.export_library(str(path))
    return path


@pytest.mark.filterwarnings("ignore::tvm_sched_runtime.runtime.MachineWarning")
def test_truncated_and_altered_artifacts_are_refused(artifact, tmp_path):
    np.testing.assert_array_equal(load(artifact).run(X)[0], X + 1)
    content = artifact.read_bytes()
    for part in (0.2, 0.5, 0.99):
        cut = tmp_path / f"cut{part}.so"
        cut.write_bytes(content[: int(len(content) * part)])
        with pytest.raises(InputError, match="cut off"):
            load(cut)
    at = content.index(b"tvm_sched.module") + 200
    altered = tmp_path / "altered.so"
    altered.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(InputError, match="altered"):
        load(altered).run(X)


def kernel_code(path):
    """Where the section of machine code lies in a 64-bit ELF file: first byte, bytes."""
    content = path.read_bytes()
    (sections,) = struct.unpack_from("<Q", content, 40)
    size, count, names = struct.unpack_from("<HHH", content, 58)
    headers = [struct.unpack_from("<IIQQQQ", content, sections + k * size) for k in range(count)]
    offset = headers[names][4]
    return next(h[4:6] for h in headers if content[offset + h[0] :].startswith(b".text\0"))


def test_altered_kernel_code_is_refused(artifact, tmp_path):
    sealed = tmp_path / "sealed.so"
    sealed.write_bytes(artifact.read_bytes())
    start, size = kernel_code(sealed)
    seal(sealed)
    check_library(sealed)
    content = bytearray(sealed.read_bytes())
    content[start + size // 2] ^= 1
    altered = tmp_path / "altered.so"
    altered.write_bytes(content)
    with pytest.raises(InputError, match=r"altered.so: was altered after it was compiled: its checksum is another"):
        load(altered)


def test_another_machine_is_told(artifact):
    with pytest.warns(UserWarning, match=f"over 1000 CPU devices, and this process may use {cores()} cores"):
        load(artifact)
    with pytest.warns(UserWarning, match="was made with apache-tvm 0.1.0"):
        load(artifact)
    (other,) = differences({"machine": {"architecture": "pdp11"}})
    assert "compiled on pdp11" in other
    assert differences({}) == []


@contextmanager
def standard_error_in(path):
    """What the process writes there, C++ too, goes to a file: `capfd` loses what is written while it is read."""
    before = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def test_watchdog_names_what_runs_and_what_waits(tmp_path):
    started, go_on = threading.Event(), threading.Event()
    module = blocking_module(started, go_on)
    module.configure(watchdog=1)  # a thread that starts late on a busy machine is nothing to report
    errors = []

    def run():
        try:
            module.run(X)
        except ExecutionError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    reported = ""
    with standard_error_in(tmp_path / "stderr"):
        thread.start()
        started.wait(20)
        while "\n" not in reported and thread.is_alive():
            reported = (tmp_path / "stderr").read_text()
        go_on.set()
        thread.join()
    assert 'operator "op0"' in reported
    (error,) = errors
    assert "no step has ended for" in error
    assert 'operator "op0" (step 0, queue "cpu0", device "cpu0") is running' in error
    assert 'transfer of "t" (step 1, queue "bus", device "cpu1") waits for operator "op0"' in error
    module.configure(watchdog=0)
    np.testing.assert_array_equal(module.run(X)[0], 2 * (X + 1))


def test_a_module_may_go_while_it_runs():
    started, go_on = threading.Event(), threading.Event()
    modules = [blocking_module(started, go_on)]
    results = []
    thread = threading.Thread(
        target=lambda main=modules[0].module["main"]: results.append(main(tvm_ffi.from_dlpack(X)))
    )
    thread.start()
    started.wait(20)
    modules.clear()
    gc.collect()
    go_on.set()
    thread.join()
    np.testing.assert_array_equal(np.from_dlpack(results[0]), 2 * (X + 1))


def test_instances_run_at_once_and_share_parameters():
    """Each of two runs waits until both are in their kernel."""
    meeting = threading.Barrier(2, timeout=20)

    def meet(a, b, out):
        meeting.wait()
        np.from_dlpack(out)[...] = np.from_dlpack(a) + np.from_dlpack(b)

    tvm_ffi.register_global_func("tvm_sched.test.meet", meet, override=True)
    module = add_and_double(function="tvm_sched.test.meet").module({"w": ONES})
    module.configure(instances=2)
    results = {}
    threads = [threading.Thread(target=lambda k=k: results.update({k: module.run(k * X)[0]})) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        np.testing.assert_array_equal(results[k], 2 * (k * X + 1))


def resident_module():
    """A parameter that is copied to the device before it is added."""
    builder = PlanBuilder()
    x, w = builder.argument("x", [4]), builder.parameter("w", [4])
    here, out = builder.arena(0, [4]), builder.output([4])
    loaded = builder.copy(w, here, event={"kind": "load", "name": "w"})
    builder.kernel(0, "tvm_sched.test.add", [x, here], [out], [loaded], event={"kind": "kernel", "name": "sum"})
    return builder.module({"w": ONES})


def test_warm_runs_compute_the_same_and_a_new_value_is_loaded():
    module = resident_module()
    module.configure(resident=["w"], trace=True)
    for steps in (2, 1, 1):
        np.testing.assert_array_equal(module.run(X)[0], X + 1)
        assert len(module.timeline()["events"]) == steps
    module.set_parameter("w", 5 * ONES)
    for steps in (2, 1):
        np.testing.assert_array_equal(module.run(X)[0], X + 5)
        assert len(module.timeline()["events"]) == steps
    with pytest.raises(InputError, match='no parameter "v"'):
        module.configure(resident=["v"])
    with pytest.raises(InputError, match="from 0 to 1"):
        module.configure(resident=2)


def test_parameters_that_share_memory_cannot_remain():
    module = resident_module()
    plan = module.plans()[0]
    plan["buffers"].append({**plan["buffers"][2], "name": "other"})
    from tvm_sched_runtime.runtime import ScheduledModule

    other = ScheduledModule(make_module([plan], {}, {"w": ONES}))
    with pytest.raises(InputError, match='can\'t remain on device "cpu0": tensor "other"'):
        other.configure(resident=1.0)
