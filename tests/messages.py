"""Prints every text of the product that a person reads at run time: `make messages`.

    python -m messages [--kind log|error|help] [folders of src/penstock]

Log lines, messages of errors, and the help of commands and options, each with its file and line.
Read the list when you change texts: a line must make sense without the code around it. Values that
are put into a text at run time are shown as `{...}`.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "penstock"
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
KINDS = ("log", "error", "help")
NOT_A_MESSAGE = frozenset({"KeyError", "AttributeError", "StopIteration"})
"""Exceptions whose argument is a name."""


class Message(NamedTuple):
    path: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"


def text_of(node: ast.expr | None) -> str:
    """The text that an expression makes, with `{...}` for what is only known at run time."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            text_of(part) if isinstance(part, ast.Constant) else "{...}" for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        left = text_of(node.left)
        right = text_of(node.right) if isinstance(node.op, ast.Add) else ""
        return left + (right or "{...}" * isinstance(node.op, ast.Add)) if left or right else ""
    if isinstance(node, ast.IfExp):
        return " | ".join(filter(None, (text_of(node.body), text_of(node.orelse))))
    return ""


def messages_in(path: str, text: str) -> Iterator[Message]:
    tree = ast.parse(text, path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from _error(path, node.exc)
        elif isinstance(node, ast.Call):
            yield from _call(path, node)
        elif isinstance(node, ast.FunctionDef) and _is_command(node):
            yield Message(path, node.lineno, "help", _one_line(ast.get_docstring(node) or ""))


def _error(path: str, call: ast.Call) -> Iterator[Message]:
    name = _last_name(call.func)
    if name in NOT_A_MESSAGE:
        return
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        if found := text_of(argument):
            yield Message(path, call.lineno, "error", _one_line(found))


def _call(path: str, call: ast.Call) -> Iterator[Message]:
    name = _last_name(call.func)
    if isinstance(call.func, ast.Attribute) and name in LEVELS and call.args:
        if "log" in _last_name(call.func.value).lower() and (found := text_of(call.args[0])):
            yield Message(path, call.lineno, "log", _one_line(found))
        return
    for keyword in call.keywords:
        if keyword.arg == "help" and (found := text_of(keyword.value)):
            yield Message(path, call.lineno, "help", _one_line(found))


def _is_command(node: ast.FunctionDef) -> bool:
    """Whether a decorator makes it a command: `@app.command()`."""
    return any(
        isinstance(each, ast.Call) and _last_name(each.func) in ("command", "callback")
        for each in node.decorator_list
    )


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def all_messages(folders: Sequence[str] = ()) -> list[Message]:
    found: list[Message] = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if "wire/messages/" in name or name.startswith("sim/"):
            continue
        if not folders or name.startswith(tuple(folders)):
            found += messages_in(f"src/penstock/{name}", path.read_text("utf-8"))
    return sorted(found)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="messages", description=__doc__)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("folders", nargs="*", help="such as broker or client/producing")
    chosen = parser.parse_args(arguments)
    for message in all_messages(chosen.folders):
        if chosen.kind in (None, message.kind):
            print(message)
    return 0


if __name__ == "__main__":
    sys.exit(main())
