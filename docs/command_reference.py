"""Write what is said of the commands from the source of ``--help``: docs/commands.md, a part of docs/llms.txt, man pages.

python docs/command_reference.py            # docs/commands.md and docs/llms.txt
python docs/command_reference.py --man DIR  # DIR/tvm-sched.1, DIR/tvm-sched-compile.1, ...
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from tvm_sched import __version__
from tvm_sched.cli import app

DOCS = Path(__file__).parent
HEADING = "## Commands\n"
MARKUP = re.compile(r"\[/?(?:bold|dim)\]")


class Command(NamedTuple):
    """A command as ``--help`` has it."""

    name: str
    panel: str
    text: str
    arguments: list[tuple[str, str]]
    options: list[tuple[str, str]]
    examples: list[str]

    @property
    def summary(self) -> str:
        """The first paragraph of its help, on one line."""
        return " ".join(self.text.partition("\n\n")[0].split())


def all_commands() -> list[Command]:
    """Return every command, by panel, with those of groups such as ``topology list``."""
    root: Any = typer.main.get_command(app)
    return list(_walk(root, typer.Context(root), "", ""))


def _walk(group: Any, context: Any, before: str, panel: str) -> Iterator[Command]:
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        full = f"{before} {name}".strip()
        own = panel or getattr(found, "rich_help_panel", None) or ""
        own = own if isinstance(own, str) else ""
        if hasattr(found, "list_commands"):
            yield from _walk(found, typer.Context(found), full, own)
        else:
            yield _described(found, full, own)


def _described(found: Any, name: str, panel: str) -> Command:
    arguments, options = [], []
    for each in found.params:
        text = MARKUP.sub("", getattr(each, "help", None) or "")
        if each.param_type_name == "argument":
            arguments.append((each.metavar or each.name.upper(), text))
            continue
        flag = getattr(each, "is_flag", False)
        metavar = "" if flag else f" {each.metavar or each.name.upper()}"
        names = [*sorted(each.opts, key=lambda name: name.startswith("--")), *each.secondary_opts]
        shown = (
            each.default not in (None, False, "", ())
            and not callable(each.default)
            and not getattr(each, "is_flag", False)
        )
        default = f" Default: {each.default}." if shown and "Default:" not in text else ""
        options.append((", ".join(names) + metavar, text + default))
    examples = re.findall(r"\[dim\]\$\[/dim\] (.*)", found.epilog or "")
    return Command(name, panel, MARKUP.sub("", found.help or "").strip(), arguments, options,
                   [example.replace("\\[", "[") for example in examples])  # fmt: skip


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def markdown(commands: list[Command]) -> str:
    """Return the page of all commands."""
    parts = [
        "# Commands\n",
        "Made by `docs/command_reference.py` from what `--help` prints; `make docs` also makes man pages of that "
        "(`man -l out/site/man/tvm-sched.1`).",
        "Every command also takes `--json` (one document on standard output, which `tvm-sched schema` describes), `--debug` "
        "and `--help`.",
        "Wrong input ends with status 2, a failure with 1, Ctrl-C with 130.\n",
    ]
    panel = ""
    for each in commands:
        if each.panel != panel:
            panel = each.panel
            parts.append(f"## {panel}\n")
        parts.append(f"### {each.name}\n\n{each.text}\n")
        if each.examples:
            parts.append("```\n" + "\n".join(each.examples) + "\n```\n")
        options = [(flag, text) for flag, text in each.options if not flag.startswith(("--json", "--debug", "--help"))]
        rows = [*each.arguments, *options]
        if rows:
            parts.append("| argument or option | meaning |\n|---|---|")
            parts += [f"| `{_cell(name)}` | {_cell(text)} |" for name, text in rows]
            parts.append("")
    return "\n".join(parts)


def llms(commands: list[Command], text: str) -> str:
    """Return docs/llms.txt with its list of commands made anew."""
    lines = [f"- `tvm-sched {each.name}`: {each.summary}" for each in commands]
    section = HEADING + "\n".join(lines) + "\n\n"
    if HEADING in text:
        begin = text.index(HEADING)
        end = text.index("## ", begin + len(HEADING))
        return text[:begin] + section + text[end:]
    first = text.index("## Tasks")
    return text[:first] + section + text[first:]


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in escaped.splitlines())


def man_page(each: Command) -> str:
    """Return a page for ``man``."""
    full = f"tvm-sched {each.name}".strip()
    arguments = [name for name, _ in each.arguments] if each.name else ["COMMAND", "..."]
    usage = " ".join([full, *("[OPTIONS]" for _ in each.options[:1]), *arguments])
    parts = [
        f'.TH "{full.upper().replace(" ", "-")}" 1 "" "tvm_sched {__version__}" "tvm_sched"',
        f".SH NAME\n{_roff(full.replace(' ', '-'))} \\- {_roff(each.summary)}",
        f".SH SYNOPSIS\n.B {_roff(usage)}",
        f".SH DESCRIPTION\n{_roff(each.text)}".replace("\n\n", "\n.PP\n"),
    ]
    for title, rows in (("ARGUMENTS", each.arguments), ("OPTIONS", each.options)):
        if rows:
            parts.append(f".SH {title}")
            parts += [f".TP\n.B {_roff(name)}\n{_roff(text)}" for name, text in rows]
    if each.examples:
        parts.append(".SH EXAMPLES\n.nf\n" + "\n".join(map(_roff, each.examples)) + "\n.fi")
    parts.append(".SH EXIT STATUS\n0: done; 1: a failure; 2: wrong input; 130: interrupted.")
    return "\n".join(parts) + "\n"


def man_pages(commands: list[Command]) -> dict[str, str]:
    """Return pages by their file names: one of the program, which lists all commands, and one of each command."""
    root = "Schedule a neural network's operators over several devices, and prove how good the schedule is."
    listed = [(f"tvm-sched {each.name}", each.summary) for each in commands]
    text = f"{root}\n\nEach command has a page of its own: man tvm-sched-compile."
    program = man_page(Command("", "", text, listed, [], []))
    program = program.replace(".SH ARGUMENTS", ".SH COMMANDS")
    pages = {f"tvm-sched-{each.name.replace(' ', '-')}.1": man_page(each) for each in commands}
    return {"tvm-sched.1": program, **pages}


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--man", type=Path, metavar="DIR", help="write man pages there, and nothing else")
    folder = parser.parse_args().man
    commands = all_commands()
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in man_pages(commands).items():
            (folder / name).write_text(text)
        return
    (DOCS / "commands.md").write_text(markdown(commands))
    index = DOCS / "llms.txt"
    index.write_text(llms(commands, index.read_text()))


if __name__ == "__main__":
    main()
