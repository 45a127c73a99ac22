"""The ingress over stages of this process, without a cluster: requests that end their stage, and clients that go."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'tvm-sched[cluster]'")

from tvm_sched_cluster.serving import ingress
from tvm_sched_cluster.serving.tensor_channel import Message, connect, error_of
from tvm_sched_runtime.errors import BusyError, FatalRequestError, InputError, ServingError

from .stages_here import POISON, cluster, generation, run, x  # noqa: F401 - a fixture


@pytest.fixture
def entry(cluster):  # noqa: F811
    """Run a coroutine with an ingress and its two stages."""

    def act(work, **options):
        first = generation(**options)
        stages = cluster.start(first)

        async def begin():
            made = ingress.Ingress(first)
            await work(made, stages)
            await made.entry.close()

        run(begin())

    return act


def test_values_pass_the_stages_and_wrong_inputs_none(entry):
    async def act(made, stages):
        results = await asyncio.gather(*(made.run(x(k)) for k in range(7)))
        assert [float(outputs[0][0]) for outputs in results] == [k + 2 for k in range(7)]
        with pytest.raises(InputError, match="the inputs x; found y"):
            await made.run({"y": np.zeros(3, np.float32)})
        assert len(stages[0].ran) == 7
        assert made.counts == {"answered": 7, "failed": 1, "refused": 0, "retried": 0}

    entry(act)


def test_a_request_that_ends_its_stage_twice_is_refused_alone(entry):
    async def act(made, stages):
        calls = [made.run(x(k)) for k in (1, POISON, 2, 3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results.pop(1), FatalRequestError)
        assert [float(outputs[0][0]) for outputs in results] == [3, 4, 5]
        assert stages[0].ran.count(POISON) == 2
        assert stages[1].ran.count(POISON + 1) == 0

    entry(act, retries=9)


@pytest.mark.parametrize("numbers", [range(4), [1] * 4], ids=["own-numbers", "one-number-for-all"])
def test_the_requests_of_a_client_that_goes_are_cancelled(entry, numbers):
    async def act(made, stages):
        stages[0].go.clear()
        _, endpoint = await made.describe()
        gone = asyncio.Event()
        channel = await connect(endpoint, lambda *_: None, lambda _: gone.set(), 1 << 10)
        for k, number in enumerate(numbers):
            channel.send(Message("run", number, names=("x",)), [x(k)["x"]])
        await asyncio.to_thread(stages[0].begun.acquire)
        server = stages[0].server
        while made.entry.in_flight < 4 or len(server._queued) < 2:  # the stage takes no more before it has answered
            await asyncio.sleep(0)
        channel.abort()
        await gone.wait()
        while made.calls or set(server._queued) - server._cancelled:
            await asyncio.sleep(0)
        stages[0].go.set()
        await made.entry.idle.wait()
        assert (stages[0].ran, stages[1].ran) == ([0], [])

    entry(act)


def test_requests_with_one_number_at_once_are_all_answered_and_all_cancelled(entry):
    async def act(made, stages):
        answers = asyncio.Queue()
        _, endpoint = await made.describe()
        channel = await connect(endpoint, lambda _, *answer: answers.put_nowait(answer), lambda _: None, 1 << 10)
        for k in (1, 2, 3):
            channel.send(Message("run", 7, names=("x",)), [x(k)["x"]])
        got = [await answers.get() for _ in range(3)]
        assert [(message.kind, message.request) for message, _ in got] == [("done", 7)] * 3
        assert sorted(float(tensors[0][0]) for _, tensors in got) == [3, 4, 5]
        stages[0].go.clear()
        for k in (4, 5):
            channel.send(Message("run", 7, names=("x",)), [x(k)["x"]])
        channel.send(Message("cancel", 7))
        channel.send(Message("run", 8, names=("x",)), [x(6)["x"]])
        while made.entry.in_flight < 1 or not any(number == 8 for _, number in made.calls.values()):
            await asyncio.sleep(0)
        stages[0].go.set()
        message, tensors = await answers.get()
        assert (message.kind, message.request, float(tensors[0][0])) == ("done", 8, 8)
        await made.entry.idle.wait()
        assert not {5, 6} & set(stages[1].ran)  # what the cancelled ones would have given it
        channel.abort()

    entry(act)


def test_errors_come_as_they_are_and_late_requests_name_their_stage(entry):
    async def act(made, stages):
        answers = asyncio.Queue()
        _, endpoint = await made.describe()
        channel = await connect(endpoint, lambda _, message, __: answers.put_nowait(message), lambda _: None, 1 << 10)
        stages[1].go.clear()
        channel.send(Message("run", 1, seconds=0.2, names=("x",)), [x(1)["x"]])
        error = error_of(await answers.get())
        assert str(error) == "deployment 'd', stage 1 on cpu1 was not done in 0.2 s"
        channel.send(Message("run", 2, names=("x",)), [x(1)["x"]])
        channel.send(Message("run", 3, names=("x",)), [x(1)["x"]])
        assert isinstance(error_of(await answers.get()), BusyError)
        stages[1].go.set()
        assert (await answers.get()).kind == "done"
        channel.abort()

    entry(act, max_in_flight=2, max_waiting=0)


def test_a_process_that_never_answers_is_ended_if_ray_takes_it_for_alive(monkeypatch):
    actor = SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda: "a"))
    known = {"State": "RESTARTING", "Pid": 7, "Address": {"NodeID": "n"}}
    ended = []
    monkeypatch.setattr(ingress.ray, "get_actor", lambda *_: actor)
    monkeypatch.setattr(ingress.ray._private.state, "actors", lambda _: known)
    monkeypatch.setattr(ingress, "kill_there", lambda *who: ended.append(who))
    directory = ingress.RayDirectory(generation(hang_timeout=1e-9))

    async def ping(stage, replica):
        raise asyncio.TimeoutError

    directory.ping = ping

    async def act():
        for state, expected in (("RESTARTING", []), ("ALIVE", [("n", 7)])):
            known["State"] = state
            for _ in range(2):  # the first notes since when, the second finds that it is too long
                with pytest.raises(ServingError):
                    await directory.find(1, 0)
            assert ended == expected

    run(act())
