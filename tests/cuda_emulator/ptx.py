"""Inline PTX as calls of the functions in ``include/cuda_emulator/ptx.h``; what is not there fails when it is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b\s*(?:volatile|__volatile__|__volatile)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPERAND = re.compile(r'\s*"([^"]*)"\s*\(')
_HEADER = Path(__file__).parent / "include" / "cuda_emulator" / "ptx.h"


def rewrite_ptx(source: str) -> str:
    """The source with each ``asm`` statement replaced; lines keep their numbers."""
    parts, position = [], 0
    while found := _ASM.search(source, position):
        end = _closing(source, found.end())
        statement = source[found.end() : end]
        parts += [source[position : found.start()], _call(statement), "\n" * statement.count("\n")]
        position = end + 1
    return "".join([*parts, source[position:]])


def _call(statement: str) -> str:
    text, operands = _parse(statement)
    instruction = _single_instruction(text)
    opcode, _, arguments = instruction.partition(" ")
    name = re.sub(r"[.:]+", "_", opcode)
    if instruction and name in _known():
        return f"cuda_emulator::ptx::{name}({', '.join(['__LINE__', *_arguments(arguments, operands)])})"
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'cuda_emulator::ptx::Unknown("{quoted}")'


def _parse(statement: str) -> tuple[str, list[str]]:
    """The template of an ``asm`` statement in one line, and the expressions of its operands."""
    position, text = 0, ""
    while found := re.compile(r"\s*" + _STRING.pattern).match(statement, position):
        text += found[1] + " "
        position = found.end()
    operands = []
    for start in _operands(statement, position):
        operands.append(statement[start : _closing(statement, start)])
    return re.sub(r"\s+", " ", re.sub(r"\\[nt]", " ", text)).replace("%%", "%").strip(), operands


def _operands(statement: str, position: int) -> Iterator[int]:
    """Where the expression of each operand begins."""
    while position < len(statement):
        if found := _OPERAND.match(statement, position):
            yield found.end()
            position = _closing(statement, found.end())
        position += 1


def _single_instruction(text: str) -> str:
    """The one instruction of a template; empty where there are several, or registers of its own."""
    instructions = [part.strip() for part in text.split(";") if part.strip()]
    return instructions[0] if len(instructions) == 1 and not instructions[0].startswith(("{", "@", ".")) else ""


def _arguments(text: str, operands: list[str]) -> list[str]:
    """Registers by reference, groups in braces as tuples of references, addresses and numbers as they are."""
    arguments = []
    for part in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", text):
        inner = re.sub(r"%(\d+)", lambda found: f"({operands[int(found[1])]})", part.strip("{}[]"))
        arguments.append(f"std::forward_as_tuple({inner})" if part.startswith("{") else inner)
    return arguments


@cache
def _known() -> frozenset[str]:
    return frozenset(re.findall(r"^(?:inline void |CUDA_EMULATOR_\w+\()(\w+)", _HEADER.read_text(), re.MULTILINE))


def _closing(text: str, position: int) -> int:
    """Where the parenthesis closes that was opened before ``position``."""
    depth = 1
    while True:
        if string := _STRING.match(text, position):
            position = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position
        position += 1
