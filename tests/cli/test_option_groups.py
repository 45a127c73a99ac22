"""Option groups: a command has the options of a group's fields, and is given them as one object."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tvm_sched.cli.option_groups import group_parameters, parameters_of
from tvm_sched.cli.output import Output
from tvm_sched.cli.registration import COMMON, command

Size = Annotated[int, typer.Option("--size", metavar="N", help="How many.")]


@dataclass(frozen=True)
class Small:
    size: Size = 3
    name: str = "nobody"


@dataclass(frozen=True)
class Large(Small):
    name: Annotated[str, typer.Option("--name", help="Whose.")] = "somebody"
    fast: Annotated[bool, typer.Option("--fast/--slow", help="How.")] = True


@dataclass(frozen=True, kw_only=True)
class OfFile(Small):
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Which.")]


def app_of(function):
    """A program whose command `work` is the function; `other` makes `work` a word that has to be said."""
    app = typer.Typer()
    command(app, "work")(function)
    command(app, "other")(lambda out: None)
    return app


def call(function, *arguments):
    return CliRunner().invoke(app_of(function), ["work", *arguments], env={"COLUMNS": "100"})


def test_fields_stand_in_the_place_of_the_group():
    def work(
        out: Output,
        *,
        first: Annotated[int, typer.Option("--first")] = 1,
        group: Large,
        last: Annotated[int, typer.Option("--last")] = 2,
    ) -> None: ...

    listed = [each.name for each in parameters_of(work, COMMON).listed]
    assert listed == ["first", "size", "name", "fast", "last", "json", "debug"]
    shown = call(work, "--help").stdout
    found = [shown.index(text) for text in ("--first", "--size", "--name", "--fast", "--last", "--json")]
    assert found == sorted(found)
    assert "How many." in shown
    assert "[default: 3]" in shown
    assert "[default: somebody]" in shown
    assert "--slow" in shown


def test_a_command_is_given_the_group_as_an_object():
    given = []

    def work(out: Output, group: Large, last: Annotated[int, typer.Option("--last")] = 2) -> None:
        given.append((group, last))

    assert call(work).exit_code == 0
    assert call(work, "--size", "5", "--slow", "--last", "7").exit_code == 0
    assert given == [(Large(), 2), (Large(size=5, fast=False), 7)]


def test_a_smaller_group_does_not_offer_what_a_subclass_does():
    given = []

    def work(out: Output, group: Small) -> None:
        given.append(group)

    assert list(group_parameters(Small)) == ["size"]
    assert list(group_parameters(Large)) == ["size", "name", "fast"]
    assert call(work, "--size", "4").exit_code == 0
    assert given == [Small(4, "nobody")]
    refused = call(work, "--name", "me")
    assert refused.exit_code == 2
    assert "No such option: --name" in refused.stderr


def test_a_group_may_hold_arguments():
    given = []

    def work(out: Output, group: OfFile, more: Annotated[str, typer.Argument(metavar="MORE")]) -> None:
        given.append((group, more))

    assert call(work, "a.txt", "b", "--size", "9").exit_code == 0
    assert given == [(OfFile(file=Path("a.txt"), size=9), "b")]
    missing = call(work, "a.txt")
    assert missing.exit_code == 2
    assert "MORE" in missing.stderr
    assert "Usage: " in call(work).output  # without anything: its help


@dataclass(frozen=True)
class OtherSize:
    size: Size = 1


def parameters(function):
    """Those of the command `work`, which are made when they are asked for."""
    return typer.main.get_command(app_of(function)).commands["work"].params


def test_a_name_that_occurs_twice_is_refused():
    def twice(out: Output, group: Small, other: OtherSize) -> None: ...

    with pytest.raises(TypeError, match="command twice: 'size' is in Small and in OtherSize"):
        parameters(twice)

    def beside(out: Output, size: Size, group: Small) -> None: ...

    with pytest.raises(TypeError, match="command beside: 'size' is in its own parameters and in Small"):
        parameters(beside)

    def common(out: Output, json: Size) -> None: ...

    with pytest.raises(TypeError, match="command common: 'json' is in its own parameters and in every command"):
        parameters(common)


def test_a_field_without_option_and_default_is_refused():
    @dataclass(frozen=True)
    class Incomplete:
        size: int

    with pytest.raises(TypeError, match="group Incomplete: 'size' is not an option and has no default"):
        group_parameters(Incomplete)
