"""What commands print with ``--json`` has a schema; `conftest.Result.json` holds every result of these tests against it."""

import jsonschema
import pytest
import typer

from tvm_sched.cli import app
from tvm_sched.cli.schema import all_results
from tvm_sched.cli.schema import schema_of as schema

from .every_command import every_command

RESULTS = all_results()


def test_every_command_has_a_schema():
    # Servers print their addresses, `export-triton` the files that it wrote; the light runtime has all but
    # `gateway`, too.
    assert set(every_command()) == {*RESULTS, "schema", "serve", "gateway", "export-triton"}


@pytest.mark.parametrize("command", RESULTS)
def test_schemas_are_schemas(command):
    jsonschema.Draft202012Validator.check_schema(schema(command))


@pytest.mark.parametrize(
    "command",
    [
        "topology list", "topology show v100-server", "topology show cpu2", "topology detect --no-measure", "cluster list",
        "cluster show rampa-base", "cluster place rampa-base --service service1", "cache path", "cache show", "schedulers",
    ],
)  # fmt: skip
def test_results_obey_their_schemas(run, command, monkeypatch, tmp_path):
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path))
    assert run(*command.split(), "--json").json


def test_a_result_that_is_none_is_refused(run):
    document = run("topology", "list", "--json").json
    validator = jsonschema.Draft202012Validator(schema("topology list"))
    document["presets"][0]["devices"] = "two"
    assert not validator.is_valid(document)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"other": 1}, schema("verify"))


def test_all_schemas_at_once(run):
    assert set(run("schema").json) == set(RESULTS)


def test_a_command_that_is_none(fails):
    assert "no command 'nosuch' prints a result; there are " in fails(2, "schema", "nosuch")


def test_a_group_of_commands_gives_the_schemas_of_all(run):
    assert sorted(run("schema", "cache").json) == ["cache clear", "cache path", "cache show"]


def test_examples_name_no_old_methods():
    """Each word behind ``--schedulers``, ``--scheduler`` and before the dot of ``--option`` is a method of today."""
    import re

    from tvm_sched.schedulers import names

    found = set()
    root = typer.main.get_command(app)
    for each in (root, *(root.get_command(None, name) for name in root.list_commands(None))):
        text = " ".join((each.epilog or "").split())
        for words in re.findall(r"(?:--schedulers?|-s) ([\w,-]+)|--option ([\w-]+)\.", text):
            found.update(word for word in "".join(words).split(",") if word)
    assert "anytime" in found
    assert found <= set(names())
