"""The controller reaches what is wanted and keeps to its limits; killed between any two steps, it loses nothing."""

import multiprocessing
import os
import signal
import subprocess
import sys

import pytest
from control_cases import CLUSTER, ONE, TWO, Clock, FileDriver
from msgspec.structs import replace

from tvm_sched_cluster import ClusterState, verify
from tvm_sched_cluster.admission import AdmissionRules
from tvm_sched_cluster.control.reconcile import Controller, ControllerOptions
from tvm_sched_cluster.control.replica_choice import least_busy
from tvm_sched_cluster.control.store import Store
from tvm_sched_cluster.search.cluster_search import ClusterSearch
from tvm_sched_runtime.errors import FormatError, InputError, ServingError


@pytest.fixture(scope="module")
def search():
    made = ClusterSearch(CLUSTER)
    for service in (ONE, TWO):
        made.mixes(service)
    return made


@pytest.fixture
def made(tmp_path, search):
    """Returns a store, a controller and its driver."""
    Store.create(tmp_path / "s.db", "small", "services", CLUSTER.digest)
    clock = Clock()

    def make(who="c1", **options):
        store = Store(tmp_path / "s.db", who, clock)
        driver = FileDriver(tmp_path / "deployed")
        chosen = ControllerOptions(**{"allocator": "first-fit", **options})
        return store, Controller(store, lambda: ClusterState(CLUSTER, [ONE, TWO], search), driver, chosen), driver

    return make


def settle(controller):
    done = []
    while step := controller.step():
        done += step
    return done


def settled(store, controller, driver):
    """What runs is what the store says, each service once, by all rules; returns the names of the services."""
    placed = store.placed()
    assert all(each.phase == "serving" for each in placed)
    assert {each.deployment for each in placed} == driver.living()
    assert len({each.name for each in placed}) == len(placed)
    allocation = controller.state().allocation  # holding them, it has found none held twice
    marked = [controller.state([]).parts(part) for part, condition in store.parts().items() if condition == "failed"]
    verify(CLUSTER, [ONE, TWO], replace(allocation, failed=tuple(p for parts in marked for p in parts)))
    assert {each.name for each in placed} <= {each.name for each in store.wanted()}
    return {each.name for each in placed}


def test_the_least_busy_replica_is_chosen_and_a_dead_one_left_out(made):
    store, controller, _ = made()
    store.submit(["chat-0", "chat-1", "chat-2", "chat-x"], "one")
    settle(controller)
    busy = {"chat-0.1": (2, 1), "chat-1.1": (1, 1), "chat-x.1": (0, 0)}

    def status(deployment):
        if deployment not in busy:
            raise ServingError(f"{deployment} does not answer")
        return dict(zip(("in_flight", "waiting"), busy[deployment], strict=True))

    assert store.serving("chat") == ["chat-0.1", "chat-1.1", "chat-2.1"]
    assert least_busy(store, "chat", status) == "chat-1.1"
    busy["chat-1.1"] = 0, 4
    assert least_busy(store, "chat", status) == "chat-0.1"
    assert least_busy(store, "chat-x", status) == "chat-x.1"
    busy.clear()
    with pytest.raises(
        ServingError, match=r"no deployment of 'chat' answers; by the store chat-0\.1, chat-1\.1, chat-2\.1"
    ):
        least_busy(store, "chat", status)
    with pytest.raises(InputError, match="no service 'cha' is wanted"):
        least_busy(store, "cha", status)


def test_a_service_that_moved_is_found_by_its_name(made):
    store, controller, _ = made()
    store.submit(["chat", "chat-0"], "one")  # the latter is no replica of the former
    settle(controller)
    gpu = next(each for each in store.placed() if each.name == "chat").placement.gpus[0]
    store.mark(gpu, "drained")
    settle(controller)
    assert store.serving("chat") == ["chat.2"]


def test_services_are_placed_renewed_and_expire(made):
    store, controller, driver = made()
    store.submit(["a"], "one", lifetime=100)
    store.submit(["b"], "two")
    planned = controller.plan()
    assert [(each.what, each.name) for each in planned] == [("start", "a"), ("start", "b")]
    assert not store.placed()  # a plan changes nothing
    assert [each.placement.gpus for each in settle(controller)] == [each.placement.gpus for each in planned]
    assert settled(store, controller, driver) == {"a", "b"}
    store.renew("a", 150)
    store.clock.now += 120
    assert not settle(controller)
    store.clock.now += 40
    assert [(each.what, each.name) for each in settle(controller)] == [("expire", "a")]
    store.withdraw("b")
    settle(controller)
    assert settled(store, controller, driver) == set()
    assert [event.what for event in store.events() if event.name == "b"] == [
        "submit",
        "start",
        "serves",
        "withdraw",
        "end",
        "ended",
    ]
    with pytest.raises(InputError, match="no service 'b' is wanted"):
        store.renew("b", 1)
    with pytest.raises(InputError, match="the lifetime is 0"):
        store.submit(["c"], "one", lifetime=0)


def test_a_name_may_be_wanted_again_for_another_service(made):
    store, controller, driver = made()
    store.submit(["a"], "one")
    settle(controller)
    store.withdraw("a")
    store.submit(["a"], "two")
    settle(controller)
    (placed,) = store.placed()
    assert (placed.placement.service, placed.generation) == ("two", 2)
    assert settled(store, controller, driver) == {"a"}
    with pytest.raises(InputError, match="'a' is wanted already"):
        store.submit(["x", "a"], "one")
    assert [each.name for each in store.wanted()] == ["a"]  # all or none


def test_failures_drains_and_repairs(made):
    """A drained server is emptied without a gap, a failed one at once; both take no services until they are repaired."""
    store, controller, driver = made()
    for name in "abcd":
        store.submit([name], "one")
    settle(controller)
    on_first = {each.name for each in store.placed() if each.placement.gpus[0].startswith("r0")}
    store.mark("r0-server0", "drained")
    moved = settle(controller)
    assert {each.name for each in moved if each.what == "move"} < on_first  # two of three find room
    order = [(e.what, e.detail) for e in store.events() if e.what in ("serves", "ended")][-4:]
    assert [what for what, _ in order] == [
        "serves",
        "ended",
    ] * 2  # started in the new place before it ends in the old one
    assert settled(store, controller, driver) == set("abcd")
    store.mark("r0", "failed")
    settle(controller)
    assert len(settled(store, controller, driver)) == 3
    (waits,) = [each for each in store.wanted() if each.reason]
    assert waits.reason == "no place is free"
    with pytest.raises(InputError, match="'r1' has not failed"):
        store.mark("r1", None)
    store.mark("r0", None)
    store.mark("r0-server0", None)
    settle(controller)
    assert settled(store, controller, driver) == set("abcd")


def test_moves_per_hour_are_limited(made):
    store, controller, driver = made(moves_per_hour=1)
    for name in "abc":
        store.submit([name], "one")
    settle(controller)
    store.mark("r0-server0", "drained")
    for hour in range(3):
        assert [each.what for each in settle(controller)] == ["move"], hour
        store.clock.now += 3601
    assert not settle(controller)
    assert all(each.placement.gpus[0].startswith("r1") for each in store.placed())
    settled(store, controller, driver)


def test_priorities_preempt_only_if_asked_and_only_what_is_needed(made):
    store, controller, driver = made()
    for n in range(6):
        store.submit([f"low{n}"], "one", priority=n % 2)
        store.clock.now += 1
    settle(controller)
    store.submit(["high"], "one", priority=5)
    settle(controller)
    assert "high" not in settled(store, controller, driver)
    controller.options = ControllerOptions(allocator="first-fit", preempt=True)
    done = settle(controller)
    assert [(each.what, each.name) for each in done if each.what != "wait"] == [("preempt", "low4"), ("start", "high")]
    assert settled(store, controller, driver) == {"high", *(f"low{n}" for n in (0, 1, 2, 3, 5))}
    store.withdraw("low1")
    settle(controller)
    assert "low4" in settled(store, controller, driver)


def test_quotas_and_starts_that_fail_wait_with_a_reason(made):
    store, controller, driver = made(admission=AdmissionRules({"one": 0.2}))
    driver.refuses = {"two"}
    for name, service in (("a", "one"), ("b", "one"), ("c", "two")):
        store.submit([name], service)
    controller.step()
    reasons = {each.name: each.reason for each in store.wanted()}
    assert (reasons["a"], reasons["c"]) == ("", "it does not load")
    assert "its quota is 20%" in reasons["b"]
    assert not [each for each in store.placed() if each.name == "c"]
    driver.refuses = set()
    settle(controller)
    assert settled(store, controller, driver) == {"a", "c"}


def test_what_died_starts_again(made):
    store, controller, driver = made()
    store.submit(["a"], "one")
    settle(controller)
    (driver.folder / "a.1").unlink()
    for _ in range(3):
        controller.step()
    assert driver.living() == {"a.1"}
    assert "died" in [event.what for event in store.events()]


def test_one_controller_works_at_a_time(made):
    store, first, _ = made()
    _, second, _ = made("c2")
    first.step()
    with pytest.raises(InputError, match=r"controller c1 holds .* for another 30 s"):
        second.step()
    store.clock.now += 31
    second.step()
    with pytest.raises(InputError, match="controller c2 holds"):
        first.step()
    with pytest.raises(InputError, match="another controller, c2, holds the lease"), store.transaction("c1"):
        pass


def scenario(folder, search, stop_at):
    """Commands and a controller in one process, which is killed before the n-th statement or driver's step."""
    count = 0

    def before(_=None):
        nonlocal count
        count += 1
        if count == stop_at:
            os.kill(os.getpid(), signal.SIGKILL)

    said = (folder / "said").open("a")

    def acknowledged(what, call, *arguments, **options):
        call(*arguments, **options)
        said.write(what + "\n")
        said.flush()

    clock = Clock()
    store = Store(folder / "s.db", "c1", clock)
    store.connection.set_trace_callback(before)
    controller = Controller(
        store,
        lambda: ClusterState(CLUSTER, [ONE, TWO], search),
        FileDriver(folder / "deployed", before),
        ControllerOptions(allocator="first-fit", preempt=True),
    )
    acknowledged("+a", store.submit, ["a"], "one")
    acknowledged("+b", store.submit, ["b"], "two")
    controller.step()
    acknowledged("fail", store.mark, "r0-server0-gpu0", "failed")
    controller.step()
    acknowledged("-a", store.withdraw, "a")
    acknowledged("+c", store.submit, ["c"], "one", priority=1)
    acknowledged("drain", store.mark, "r1-server0-gpu0", "drained")
    controller.step()
    os._exit(3)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.thorough)])
def test_killed_before_any_write_nothing_is_lost(tmp_path, search, every):
    """Each acknowledged change is there, no other half of one is, and the next controller reaches the wanted state."""
    fork = multiprocessing.get_context("fork")
    for stop_at in range(1, 1000, every):
        folder = tmp_path / str(stop_at)
        folder.mkdir()
        Store.create(folder / "s.db", "small", "services", CLUSTER.digest)
        child = fork.Process(target=scenario, args=(folder, search, stop_at))
        child.start()
        child.join()
        store = Store(folder / "s.db", "c2", Clock())
        store.clock.now += 100
        wanted = {each.name for each in store.wanted()}
        for said in (folder / "said").read_text().split():
            if said[0] in "+-":
                assert (said[1] in wanted) == (said[0] == "+") or (said == "+a" and store_said(store, "withdraw")), (
                    stop_at
                )
            else:
                assert {"fail": "r0-server0-gpu0", "drain": "r1-server0-gpu0"}[said] in store.parts()
        log = store.events(1000)
        assert wanted == {e.name for e in log if e.what == "submit"} - {e.name for e in log if e.what == "withdraw"}
        assert store.parts().keys() == {e.name for e in log if e.what in ("failed", "drained")}
        driver = FileDriver(folder / "deployed")
        options = ControllerOptions(allocator="first-fit", preempt=True)
        controller = Controller(store, lambda: ClusterState(CLUSTER, [ONE, TWO], search), driver, options)
        settle(controller)
        controller.step()
        assert settled(store, controller, driver) == wanted, stop_at
        store.close()
        if child.exitcode == 3:
            break
        assert child.exitcode == -signal.SIGKILL
    assert stop_at > 60  # it was killed at that many places


def store_said(store, what):
    return [event for event in store.events(1000) if event.what == what]


def test_of_several_commands_at_once_none_is_lost(tmp_path):
    Store.create(tmp_path / "s.db", "small", "services", CLUSTER.digest)
    program = (
        "import sys\n"
        "from tvm_sched_cluster.control.store import Store\n"
        "store = Store(sys.argv[1])\n"
        "for n in range(25): store.submit([f'{sys.argv[2]}-{n}'], 'one')\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, tmp_path / "s.db", str(k)]) for k in range(5)]
    running[4].kill()  # at any moment
    assert [process.wait() for process in running[:4]] == [0] * 4
    running[4].wait()
    names = {each.name for each in Store(tmp_path / "s.db").wanted()}
    assert {f"{k}-{n}" for k in range(4) for n in range(25)} <= names


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FormatError, match="there is no such store"):
        Store(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("no database" * 100)
    with pytest.raises(FormatError, match=r"cannot be opened as a store|not a store"):
        Store(tmp_path / "text.db")
    Store.create(tmp_path / "s.db", "small", "services", "digest")
    with pytest.raises(InputError, match="the store of 'small', another cluster"):
        Store.create(tmp_path / "s.db", "large", "services", "other")
    store = Store(tmp_path / "s.db")
    store.connection.execute("pragma user_version = 2")
    with pytest.raises(FormatError, match="version 2 of a store; this program reads version 1"):
        Store(tmp_path / "s.db")
