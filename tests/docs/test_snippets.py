"""Every block of shell and Python in README and documents runs, and its commands are there with their options."""

import subprocess

import pytest

import tvm_sched
from docs import command_server
from docs.snippets import PAGES, ROOT, Place, blocks, commands, run

RUN_ELSEWHERE = {
    "extending.md": "docs/test_extending.py",
    "deployment.md": "docs/test_deployment.py",
    "serve.md": "inference_server/test_task.py",
    "serve_models.md": "inference_server/test_task.py",
    "torch_compile.md": "test_torch_backend.py",
}
"""Pages whose blocks another module runs, and looks at what comes out."""

FIRST = ("README.md", "first_steps.md", "deploy_cpu.md", "write_scheduler.md")
"""Pages that `make test` runs; the others are thorough."""

PLUGIN = ROOT / "python" / "tvm_sched_onnxruntime" / "_lib"

RUN = [page for page in PAGES if any(not b.not_run for b in blocks(page)) and page.name not in RUN_ELSEWHERE]


def name(page):
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    pytest.importorskip("onnx")
    pytest.importorskip("tvm")
    with command_server.started() as server:
        yield Place(server, tmp_path_factory.mktemp("cache"))


@pytest.mark.slow
@pytest.mark.xdist_group("pages")  # of one server and one cache
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if page.name in FIRST else pytest.mark.thorough) for page in RUN],
    ids=name,
)
def test_a_page_runs_from_top_to_bottom(page, tmp_path, place):
    if page.name == "onnx_runtime.md" and not PLUGIN.is_dir():
        pytest.skip("the plugin for ONNX Runtime is not built; make plugin builds it, with headers that npm fetches")
    run(page, tmp_path, place)


@pytest.mark.xdist_group("pages")
def test_what_stands_for_the_program_does_as_it_does(place, tmp_path):
    command_server.write_client(tmp_path / "tvm-sched", place.server)

    def call(*arguments):
        command = [str(tmp_path / "tvm-sched"), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    (tmp_path / "empty.json").write_text("{}")
    assert call("--version").stdout == f"tvm-sched {tvm_sched.__version__}\n"
    refused = call("verify", "empty.json", "empty.json")  # by a name in its own folder
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "empty.json" in refused.stderr


def called():
    return [
        (page, words) for page in PAGES for block in blocks(page) if block.language == "sh" for words in commands(block)
    ]


@pytest.mark.parametrize(
    ("page", "words"), called(), ids=lambda value: name(value) if hasattr(value, "parts") else " ".join(value)
)
def test_a_command_is_there_with_its_options(page, words):
    import typer

    from tvm_sched.cli import app

    command = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands"):
        found = command.get_command(typer.Context(command), rest[0])
        assert found, f"{rest[0]} is no command of tvm-sched"
        command, rest = found, rest[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help"
    }
    given = {word.partition("=")[0] for word in rest if word.startswith("-") and not word[1:2].isdigit()}
    assert given <= known


def test_the_ten_minutes_of_each_reader_are_run():
    start = {page.name for page in (ROOT / "docs" / "start").glob("*.md")}
    assert start == {"deploy_cpu.md", "plan_server.md", "research.md", "serve_models.md"}
    assert start == {page.name for page in RUN if page.parent.name == "start"} | {"serve_models.md"}


def test_the_pages_of_tasks_are_all_run():
    tasks = {page.name for page in RUN if page.parent.name == "tasks"}
    assert tasks | set(RUN_ELSEWHERE) >= {page.name for page in (ROOT / "docs" / "tasks").glob("*.md")}
    assert all(page in (ROOT / "tests" / module).read_text() for page, module in RUN_ELSEWHERE.items())
    assert not any(block.not_run for page in RUN if page.parent.name == "tasks" for block in blocks(page))
