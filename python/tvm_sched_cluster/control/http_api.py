"""The controller's HTTP API and its live page; every request but the page's own needs a user's token."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tvm_sched_runtime.errors import InputError, TvmSchedError

from .control_results import Changed
from .reconcile import Controller
from .store import Store

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_PAGE = Path(__file__).with_name("live_page.html")


class Submission(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of ``POST /api/services``."""

    name: str
    service: str
    priority: int = 0
    lifetime: float | None = None


class Renewal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of ``POST /api/services/NAME/renew``."""

    lifetime: float


class Marking(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of ``POST /api/parts``: ``condition`` is failed, drained or works."""

    part: str
    condition: Literal["failed", "drained", "works"]


def read_users(path: Path) -> dict[str, str]:
    """Return the users of a file by their tokens: lines of a name and a token, ``#`` begins a comment.

    Raises
    ------
    InputError
        A line of another form, a token of fewer than 16 characters, or no user.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    users = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or len(words[1]) < 16:
            raise InputError(f"{path}: line {number}: a name and a token of at least 16 characters are expected")
        users[words[1]] = words[0]
    if not users:
        raise InputError(f"{path} names no user")
    return users


def make_app(controller: Controller, users: dict[str, str]) -> Starlette:
    """Return the application. Each request opens the store for itself, under the user's name in the audit log."""
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse
    from starlette.responses import Response as Answer
    from starlette.routing import Route

    empty = controller.empty()
    services = empty.services
    layout = {
        rack.name: {
            server.name: [empty.cluster.gpus[g].name for g in empty.cluster.servers[server.name]]
            for server in rack.servers
        }
        for rack in empty.cluster.racks
    }

    def answer(body: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
        return Answer(msgspec.json.encode(body), status, media_type="application/json")

    def as_user(handle: Callable[[Request, Store, bytes], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            from starlette.concurrency import run_in_threadpool

            credential = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
            user = None
            for token, name in users.items():  # all of them, so that the time tells nothing
                user = name if hmac.compare_digest(credential, token.encode()) else user
            if user is None:
                return answer({"error": "a user's token is needed: Authorization: Bearer ..."}, HTTPStatus.UNAUTHORIZED)
            body = await request.body()

            def work() -> Any:
                store = Store(controller.store.path, user, controller.store.clock)
                try:
                    return handle(request, store, body)
                finally:
                    store.close()

            try:
                return answer(await run_in_threadpool(work))
            except (TvmSchedError, msgspec.MsgspecError) as error:
                return answer({"error": str(error)}, HTTPStatus.BAD_REQUEST)

        return endpoint

    def state(request: Request, store: Store, _: bytes) -> Any:
        plan = Controller(store, controller.empty, controller.driver, controller.options).plan()
        return {
            "cluster": empty.cluster.name,
            "racks": layout,
            "services": list(services),
            "events": store.events(20),
            "planned": [action for action in plan if action.what != "wait"],
            **Changed.fields(store),
        }

    def submit(request: Request, store: Store, body: bytes) -> Any:
        asked = msgspec.json.decode(body, type=Submission)
        if asked.service not in services:
            raise InputError(f"there is no service {asked.service!r}; there are {', '.join(services)}")
        store.submit([asked.name], asked.service, asked.priority, asked.lifetime)
        return {"wanted": asked.name}

    def withdraw(request: Request, store: Store, _: bytes) -> Any:
        store.withdraw(request.path_params["name"])
        return {"withdrawn": request.path_params["name"]}

    def renew(request: Request, store: Store, body: bytes) -> Any:
        store.renew(request.path_params["name"], msgspec.json.decode(body, type=Renewal).lifetime)
        return {"renewed": request.path_params["name"]}

    def mark(request: Request, store: Store, body: bytes) -> Any:
        asked = msgspec.json.decode(body, type=Marking)
        controller.empty().parts(asked.part)
        store.mark(asked.part, None if asked.condition == "works" else asked.condition)
        return {asked.part: asked.condition}

    async def page(_: Request) -> Response:
        return HTMLResponse(_PAGE.read_text("utf-8"))

    return Starlette(
        routes=[
            Route("/", page),
            Route("/api/state", as_user(state)),
            Route("/api/services", as_user(submit), methods=["POST"]),
            Route("/api/services/{name}", as_user(withdraw), methods=["DELETE"]),
            Route("/api/services/{name}/renew", as_user(renew), methods=["POST"]),
            Route("/api/parts", as_user(mark), methods=["POST"]),
        ]
    )


def serve(controller: Controller, where: str, tokens: Path, interval: float, say: Callable[[str], None]) -> None:
    """Serve the page and the API until Ctrl-C, while the controller works in another thread.

    Raises
    ------
    InputError
        The address is none, or cannot be listened on.
    TvmSchedError
        Starlette or uvicorn is not installed, or the controller lost its lease.
    """
    host, _, port = where.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) < 2**16:
        raise InputError(f"--http {where}: HOST:PORT is expected, such as 127.0.0.1:8400")
    users = read_users(tokens)
    try:
        import uvicorn
    except ImportError:
        raise TvmSchedError(
            "the HTTP API needs Starlette and uvicorn, which are not installed: pip install 'tvm-sched[serve]'"
        ) from None
    app = make_app(controller, users)
    server = uvicorn.Server(uvicorn.Config(app, host=host, port=int(port), log_level="warning"))
    stopped, failed = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            while not stopped.wait(interval):
                for action in controller.step():
                    say(action.line)
        except BaseException as error:
            failed.append(error)
            server.should_exit = True

    thread = threading.Thread(target=work, name="controller")
    thread.start()
    say(f"page: http://{where}/")
    try:
        server.run()
    except SystemExit:
        raise InputError(f"--http {where}: cannot be listened on") from None
    finally:
        stopped.set()
        thread.join()
    if failed:
        raise failed[0]
    raise KeyboardInterrupt
