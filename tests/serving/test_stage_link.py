"""Connections to stages, without Ray: values, credits, cancelling, lost and hanging stages, and who may connect."""

import asyncio
import math
import socket
import threading
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from tvm_sched_cluster.serving.stage_link import (
    StageGoneError,
    StageLink,
    StageLostError,
    StageReplicas,
    StageRetiredError,
)
from tvm_sched_cluster.serving.stage_server import StageServer
from tvm_sched_cluster.serving.tensor_channel import Channel, Message, connect
from tvm_sched_runtime.errors import InputError, ServingError

SECONDS = 60
X = np.arange(12, dtype=np.float32).reshape(3, 4)


class Stage:
    """A stage that doubles its input, when it is let."""

    def __init__(self, limit=1 << 20):
        self.go, self.ran, self.begun, self.threads = threading.Event(), [], threading.Semaphore(0), []
        self.go.set()
        self.limit, self.latency = limit, math.inf
        self.start()

    def start(self):
        self.server = StageServer(self.run, "127.0.0.1", "secret", self.limit, lambda: self.latency)

    def run(self, *tensors):
        self.threads.append(threading.current_thread())
        self.begun.release()
        assert self.go.wait(SECONDS)
        self.ran.append(tensors)
        if not tensors:
            raise InputError("no tensors")
        return [2 * tensor for tensor in tensors]

    async def find(self):
        if self.server is None:
            raise ServingError("not there")
        return self.server.endpoint

    def link(self, credits=2, hang=1000.0, give_up=None):
        return StageReplicas([self.one_link(credits, hang, give_up)])

    def one_link(self, credits=2, hang=1000.0, give_up=None):
        return StageLink(self.find, credits, 1 << 20, hang, give_up)


@pytest.fixture
def stage():
    made = Stage()
    yield made
    made.go.set()
    if made.server is not None:
        made.server.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Run a coroutine in an event loop, also in uvloop's, which Ray's actors have if it is installed."""
    make = asyncio.new_event_loop if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop

    def act(work):
        loop = make()
        try:
            return loop.run_until_complete(asyncio.wait_for(work, SECONDS))
        finally:
            loop.close()

    return act


def test_values_types_and_errors_come_through(stage, run):
    async def act():
        link = stage.link()
        tensors = [X, np.zeros((0, 3), np.int64), np.array(7, np.int8), X[:, ::2], np.float16([1, 2])]
        outputs, seconds = await link.run(tensors)
        assert seconds > 0
        for given, value in zip(tensors, outputs, strict=True):
            assert value.dtype == given.dtype
            np.testing.assert_array_equal(value, 2 * given)
        with pytest.raises(InputError, match="no tensors"):
            await link.run([])
        large = np.random.default_rng(0).integers(0, 9, 1 << 17).astype(np.float32)
        results = await asyncio.gather(*(link.run([large + k]) for k in range(8)))
        for k, (outputs, _) in enumerate(results):
            np.testing.assert_array_equal(outputs[0], 2 * (large + k))
        assert all(tensor.ctypes.data % 64 == 0 for tensors in stage.ran for tensor in tensors if tensor.size)
        await link.close()

    run(act())


def test_credits_limit_what_the_stage_has_and_cancelled_requests_are_not_computed(stage, run):
    async def act():
        link = stage.link(credits=2)
        stage.go.clear()
        calls = [asyncio.ensure_future(link.run([X + k])) for k in range(5)]
        await asyncio.to_thread(stage.begun.acquire)
        assert link.links[0].outstanding == 2
        for call in calls[1:4]:
            call.cancel()
        while not stage.server._cancelled:  # the second; the stage has no other, for want of credits
            await asyncio.sleep(0.001)
        stage.go.set()
        for k in (0, 4):
            np.testing.assert_array_equal((await calls[k])[0][0], 2 * (X + k))
        await link.idle()
        assert [tensors[0][0, 0] for tensors in stage.ran] == [0, 4]
        await link.close()

    run(act())


def test_messages_come_through_in_any_pieces():
    rng = np.random.default_rng(0)
    sizes = [0, 1, 5, 40_000, 65_535, 65_536, 65_537, 200_000, 3]
    sent = [
        (Message("run", number), [rng.integers(0, 256, size).astype(np.uint8), X[:size]])
        for number, size in enumerate(sizes)
    ]
    for largest in (50, 4096, 100_000, 1 << 20):
        content, found = [], []
        sender = Channel(None, None, 0)
        sender._transport = SimpleNamespace(write=content.append)
        for message, tensors in sent:
            count = len(content)
            sender.send(message, tensors)
            if tensors[0].nbytes <= 40_000:
                assert len(content) == count + 1
            else:  # no large tensor is copied
                assert np.shares_memory(np.frombuffer(content[count + 1], np.uint8), tensors[0])
        content = memoryview(b"".join(content))
        receiver = Channel(lambda _, message, tensors, to=found: to.append((message, tensors)), None, 1 << 20)
        while len(content):
            buffer = receiver.get_buffer(-1)
            count = min(len(buffer), len(content), int(rng.integers(1, largest + 1)))
            buffer[:count] = content[:count]
            content = content[count:]
            receiver.buffer_updated(count)
        assert [message.request for message, _ in found] == list(range(len(sizes)))
        for (_, given), (_, received) in zip(sent, found, strict=True):
            for one, other in zip(given, received, strict=True):
                np.testing.assert_array_equal(one, other)


def test_a_lost_stage_says_what_it_was_computing_and_the_link_finds_the_next(stage, run):
    async def act():
        link = stage.link()
        stage.go.clear()
        calls = [asyncio.ensure_future(link.run([X])) for _ in range(2)]
        await asyncio.to_thread(stage.begun.acquire)
        while not link.links[0]._begun:
            await asyncio.sleep(0)
        old, stage.server = stage.server, None
        link.links[0]._channel.abort()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [(type(error), error.running) for error in found] == [(StageLostError, True), (StageLostError, False)]
        again = asyncio.ensure_future(link.run([X]))
        stage.go.set()
        await asyncio.to_thread(old.close)
        stage.start()
        np.testing.assert_array_equal((await again)[0][0], 2 * X)
        await link.close()

    run(act())


def test_short_runs_need_no_other_thread_and_are_told_before_they_begin(stage, run):
    async def act():
        link = stage.link()
        for k in range(20):
            np.testing.assert_array_equal((await link.run([X + k]))[0][0], 2 * (X + k))
        for _ in range(20):
            stage.server._recent.note(1e-5)  # on a busy machine they may have taken longer
        stage.go.clear()
        call = asyncio.ensure_future(link.run([X]))
        while not link.links[0]._begun:
            await asyncio.sleep(0)
        await asyncio.to_thread(lambda: [stage.begun.acquire() for _ in range(21)])
        assert stage.threads[0] != stage.threads[-1] == stage.server._thread
        link.links[0]._channel.abort()
        with pytest.raises(StageLostError) as lost:
            await call
        assert lost.value.running
        stage.go.set()
        np.testing.assert_array_equal((await link.run([X]))[0][0], 2 * X)
        await link.close()

    run(act())


def test_the_wait_for_pythons_lock_is_no_computing(stage, run):
    """A stage reports the executor's seconds, which end before the thread gets the lock again."""
    stage.latency = 1e-9  # less than any run takes here

    async def act():
        link = stage.link()
        for _ in range(16):
            assert (await link.run([X]))[1] == 1e-9
        assert stage.server._recent.short
        await link.close()

    run(act())


@pytest.mark.parametrize("runs", [0, 20], ids=["in-its-thread", "in-the-thread-that-sends"])
def test_a_stage_that_hangs_is_given_up(stage, run, runs):
    async def act():
        ended = asyncio.Event()

        async def give_up(endpoint):
            assert endpoint == stage.server.endpoint
            ended.set()

        link = stage.link(hang=0.2, give_up=give_up)
        for _ in range(runs):
            stage.server._recent.note(1e-5)
        stage.go.clear()
        with pytest.raises(StageLostError) as lost:
            await link.run([X])
        assert lost.value.running
        await ended.wait()
        assert link.links[0].hangs == 1
        await link.close()

    run(act())


def closed(endpoint, content):
    """Whether the server closes a connection that sends this."""
    with socket.create_connection((endpoint.host, endpoint.port), SECONDS) as connection:
        connection.sendall(content)
        return connection.recv(1) == b""


def frame(message):
    fields = msgspec.msgpack.encode(message)
    return len(fields).to_bytes(4, "little") + fields


def test_who_does_not_know_the_token_or_the_format_is_sent_away(stage, run):
    endpoint = stage.server.endpoint
    hello = frame(Message("hello", text="secret"))
    assert closed(endpoint, frame(Message("hello", text="wrong")))
    assert closed(endpoint, frame(Message("hello", text="sécret")))
    assert closed(endpoint, frame(Message("run", 1)))
    assert closed(endpoint, (1 << 31).to_bytes(4, "little"))
    assert closed(endpoint, hello + b"\0\0\0\0")
    assert closed(endpoint, hello + (3).to_bytes(4, "little") + b"\xc1\xc1\xc1")
    for tensors in ([["float32", [1 << 40]]], [["float32", [-1, 4]]], [["object", [1]]], [["float32", [1 << 19]]] * 2):
        assert closed(endpoint, hello + frame(["run", 1, "", 0.0, [], tensors]))

    async def act():
        lost = asyncio.Event()
        channel = await connect(msgspec.structs.replace(endpoint, token="other"), None, lambda _: lost.set(), 0)
        await lost.wait()
        assert channel.closed

    run(act())
    assert stage.ran == []


def test_requests_go_to_the_replica_with_the_fewest_and_from_a_lost_one_to_another(run):
    stages = [Stage(), Stage()]
    servers = [stage.server for stage in stages]

    async def act():
        replicas = StageReplicas([stage.one_link() for stage in stages])
        replicas.open()
        while not all(link.connected for link in replicas.links):
            await asyncio.sleep(0)
        for stage in stages:
            stage.go.clear()
        calls = [asyncio.ensure_future(replicas.run([X + k])) for k in range(6)]
        for stage in stages:
            await asyncio.to_thread(stage.begun.acquire)
        assert [link.outstanding for link in replicas.links] == [2, 2]
        stages[0].server = None
        replicas.links[0]._channel.abort()
        stages[1].go.set()
        found = await asyncio.gather(*calls, return_exceptions=True)
        lost = [k for k, each in enumerate(found) if isinstance(each, StageLostError)]
        assert lost == [0, 2]
        for k in (1, 3, 4, 5):
            np.testing.assert_array_equal(found[k][0][0], 2 * (X + k))
        await replicas.close()

    try:
        run(act())
    finally:
        for stage in stages:
            stage.go.set()
        for server in servers:
            server.close()


def test_a_stage_that_will_not_come_back_says_so(stage, run):
    async def act():
        async def gone():
            raise StageGoneError("no node")

        replicas = StageReplicas([StageLink(gone, 2, 1 << 10, 1000.0, None) for _ in range(2)])
        with pytest.raises(StageGoneError, match="no node"):
            await replicas.run([X])
        await replicas.close()
        retired = StageReplicas([stage.one_link()])
        server, stage.server = stage.server, None
        call = asyncio.ensure_future(retired.run([X]))
        while not retired.links[0]._keeper:
            await asyncio.sleep(0)
        retired.retire()
        with pytest.raises(StageRetiredError):
            await call
        await retired.close()
        stage.server = server

    run(act())
