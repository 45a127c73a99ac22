"""The controller's HTTP API: tokens, changes and what it refuses; and the live page in a browser."""

import socket
import threading

import pytest
from control_cases import CLUSTER, ONE, TWO, Clock, FileDriver

from report import browser
from tvm_sched_cluster import ClusterState
from tvm_sched_cluster.control.reconcile import Controller, ControllerOptions
from tvm_sched_cluster.control.store import Store
from tvm_sched_cluster.search.cluster_search import ClusterSearch
from tvm_sched_runtime.errors import InputError

TOKEN = "0123456789abcdef"


@pytest.fixture
def controller(tmp_path):
    Store.create(tmp_path / "s.db", "small", "services", CLUSTER.digest)
    search = ClusterSearch(CLUSTER)
    store = Store(tmp_path / "s.db", "c1", Clock())
    options = ControllerOptions(allocator="first-fit")
    driver = FileDriver(tmp_path / "deployed")
    return Controller(store, lambda: ClusterState(CLUSTER, [ONE, TWO], search), driver, options)


@pytest.fixture
def app(controller):
    pytest.importorskip("starlette", reason="Starlette is not installed: pip install 'tvm-sched[serve]'")
    from tvm_sched_cluster.control.http_api import make_app

    return make_app(controller, {TOKEN: "anna"})


def test_changes_by_http_need_a_token_and_stand_in_the_log(app, controller):
    testclient = pytest.importorskip(
        "starlette.testclient", reason="httpx is not installed", exc_type=(ImportError, RuntimeError)
    )
    client = testclient.TestClient(app)
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        assert client.get("/api/state", headers=headers).status_code == 401
        assert client.post("/api/services", headers=headers, json={"name": "a", "service": "one"}).status_code == 401
    assert not controller.store.wanted()
    assert "Token" in client.get("/").text
    client.headers = {"Authorization": f"Bearer {TOKEN}"}
    assert client.post("/api/services", json={"name": "a", "service": "one", "lifetime": 50}).json() == {"wanted": "a"}
    planned = client.get("/api/state").json()["planned"]
    assert [(each["what"], each["name"]) for each in planned] == [("start", "a")]
    controller.step()
    said = client.get("/api/state").json()
    assert [(each["name"], each["phase"]) for each in said["placed"]] == [("a", "serving")]
    assert said["racks"]["r0"]["r0-server0"] == ["r0-server0-gpu0", "r0-server0-gpu1", "r0-server0-gpu2"]
    assert client.post("/api/services/a/renew", json={"lifetime": 500}).status_code == 200
    assert client.post("/api/parts", json={"part": "r0", "condition": "drained"}).json() == {"r0": "drained"}
    assert client.delete("/api/services/a").status_code == 200
    assert [(e.who, e.what) for e in controller.store.events() if e.who == "anna"] == [
        ("anna", what) for what in ("submit", "renew", "drained", "withdraw")
    ]
    for call, message in (
        (lambda: client.post("/api/services", json={"name": "b", "service": "none"}), "there is no service 'none'"),
        (lambda: client.post("/api/services", json={"name": "b"}), "missing required field `service`"),
        (lambda: client.post("/api/services", content="{"), "truncated"),
        (lambda: client.post("/api/parts", json={"part": "r9", "condition": "failed"}), "no GPU, server, rack or link"),
        (lambda: client.post("/api/parts", json={"part": "r0", "condition": "gone"}), "Invalid enum value 'gone'"),
        (lambda: client.delete("/api/services/none"), "no service 'none' is wanted"),
    ):
        got = call()
        assert got.status_code == 400
        assert message in got.json()["error"]


def test_files_of_users(tmp_path):
    from tvm_sched_cluster.control.http_api import read_users

    file = tmp_path / "tokens"
    file.write_text(f"# users\nanna {TOKEN}\n")
    assert read_users(file) == {TOKEN: "anna"}
    for text in ("anna short\n", "anna\n", ""):
        file.write_text(text)
        with pytest.raises(InputError, match="tokens"):
            read_users(file)


@pytest.mark.xdist_group("browser")
@pytest.mark.slow
def test_the_live_page_shows_racks_services_and_what_is_planned(app, controller, tmp_path):
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'tvm-sched[serve]'")
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    driver = browser.start(tmp_path)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            controller.store.submit(["a.b"], "one")
            controller.step()
            controller.store.submit(["later"], "two")
            controller.store.mark("r1", "failed")
            driver.get(f"http://127.0.0.1:{listening.getsockname()[1]}/")
            driver.find_element(By.ID, "token").send_keys(TOKEN)
            driver.find_element(By.TAG_NAME, "button").click()
            WebDriverWait(driver, 20).until(lambda d: "start" in d.find_element(By.ID, "planned").text)
            assert "a.b" in driver.find_element(By.ID, "services").text
            assert "waits" in driver.find_element(By.ID, "services").text
            assert len(driver.find_elements(By.CSS_SELECTOR, ".gpu")) == 6
            assert len(driver.find_elements(By.CSS_SELECTOR, ".gpu.failed")) == 3
            assert driver.find_element(By.CSS_SELECTOR, ".gpu.used").text == "a.b"
            assert not browser.too_faint(driver)
            controller.step()  # the page follows by itself
            WebDriverWait(driver, 20).until(lambda d: "later" in d.find_element(By.ID, "racks").text)
            assert not [
                line
                for line in driver.get_log("browser")
                if line["level"] == "SEVERE" and "favicon" not in line["message"]
            ]
        finally:
            driver.quit()
            server.should_exit = True
            thread.join()
