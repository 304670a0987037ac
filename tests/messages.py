"""Prints every text of the product that a person reads at run time: `make messages`.

    python -m messages [--kind KIND] [folders of src/penstock]

Each text is shown with its file and line, and its kind:

    log      a log line
    error    the message of an exception
    help     the help of a command or an option
    printed  what a command prints or asks
    about    the description of a setting, an option of a client or a metric
    text     any other string that reads like prose: returned, in a table, or part of a longer text

The last kind makes the list complete, and it also has a few strings that nobody reads.

Read the list when you change texts: a line must make sense without the code around it. Values that
are put into a text at run time are shown as `{...}`.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "penstock"
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
KINDS = ("log", "error", "help", "printed", "about", "text")
NOT_A_MESSAGE = frozenset({"KeyError", "AttributeError", "StopIteration"})
"""Exceptions whose argument is a name."""
PRINTING = frozenset({"emit", "print", "confirm", "_say", "_tell", "_done", "Finding"})
STREAMS = frozenset({"stdout", "stderr"})
DESCRIBING = frozenset(
    {"Definition", "Metric", "_counter", "_gauge", "_histogram", "_key", "option"}
)
"""Calls that define a setting, an option or a metric, with its description."""
PATTERNS = frozenset({"compile", "match", "fullmatch", "search", "findall", "split", "sub"})
_PROSE = re.compile(r"[A-Za-z][\w'-]*[,:;.]? +\W?[A-Za-z]")
_CODE = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE FROM|CREATE|DROP|ALTER|PRAGMA|BEGIN|WITH|COPY|LOCK|SET) "
    r"|\s*(import|from|def|class|return|async def) \w+[ (.:]"
    r"|\s*\w+ (key \d+ )?versions? \d"
)
"""Statements of SQL and Python, and schemas of messages and records."""


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


def messages_in(path: str, text: str) -> list[Message]:
    return _File(path, ast.parse(text, path)).found


class _File:
    """The messages of one file: first those whose kind can be told, then all other prose."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.found: list[Message] = []
        self._path = path
        self._seen: set[ast.AST] = set()
        """Nodes that are in the list, or are no messages."""
        self._named: dict[str, str] = {}
        """Variables whose value is given to a call that takes a message, and the kind of that."""
        nodes = list(ast.walk(tree))
        self._loggers = {name for node in nodes for name in _new_loggers(node)}
        for node in nodes:
            self._look(node)
        for node in nodes:
            self._look_at_variable(node)
        for node in nodes:
            if node not in self._seen:
                self._look_at_rest(node)

    def _add(self, node: ast.expr, kind: str, line: int | None = None) -> None:
        """Lists the text of an expression, or remembers the variable that holds it."""
        if isinstance(node, ast.Name):
            self._named.setdefault(node.id, kind)
        elif node not in self._seen and (text := _one_line(text_of(node))):
            self.found.append(Message(self._path, line or node.lineno, kind, text))
            self._seen |= _parts(node)

    def _look(self, node: ast.AST) -> None:
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            self._error(node.exc)
        elif isinstance(node, ast.Call):
            self._call(node, _last_name(node.func))
        elif isinstance(node, ast.FunctionDef) and _is_helped_by_docstring(node):
            help_text = _one_line(ast.get_docstring(node) or "")
            self.found.append(Message(self._path, node.lineno, "help", help_text))
        elif isinstance(node, ast.Assert) and node.msg is not None:
            self._seen |= _parts(node.msg)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            self._seen.add(node.value)
        elif isinstance(node, ast.Compare):
            self._seen.update(each for each in ast.walk(node) if isinstance(each, ast.Constant))

    def _error(self, call: ast.Call) -> None:
        for argument in _arguments(call):
            if _last_name(call.func) in NOT_A_MESSAGE:
                self._seen |= _parts(argument)
            else:
                self._add(argument, "error", call.lineno)

    def _call(self, call: ast.Call, name: str) -> None:
        owner = _last_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if owner in self._loggers or "log" in owner.lower():
            at = 1 if name == "log" else 0
            if (name in LEVELS or at) and len(call.args) > at:
                self._add(call.args[at], "log", call.lineno)
                return
        if name in PRINTING or (name == "write" and owner in STREAMS):
            for argument in call.args:
                if isinstance(argument, ast.Name) or _has_word(text_of(argument)):
                    self._add(argument, "printed")
        elif name in DESCRIBING:
            for argument in _arguments(call):
                if _is_prose(text_of(argument)):
                    self._add(argument, "about")
        elif owner == "re" and name in PATTERNS:
            self._seen.update(*map(_parts, call.args))
        elif name == "split" and isinstance(call.func, ast.Attribute):
            self._seen |= _parts(call.func.value)
        for keyword in call.keywords:
            if keyword.arg == "help":
                self._add(keyword.value, "help", call.lineno)

    def _look_at_variable(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            name = _last_name(targets[0])
            kind = "help" if name.endswith("HELP") else self._named.get(name)
            if kind and _has_word(text_of(node.value)):
                self._add(node.value, kind)

    def _look_at_rest(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr) and _is_prose(text_of(node)):
            self._add(node, "text")


def _new_loggers(node: ast.AST) -> Iterator[str]:
    """The names of a logger: `_audit = logging.getLogger("penstock.audit")`."""
    if (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and _last_name(node.value.func) == "getLogger"
    ):
        yield from map(_last_name, node.targets)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _parts(node: ast.expr) -> set[ast.AST]:
    """The nodes that make the text of an expression, without the values that are put into it."""
    parts: set[ast.AST] = {node}
    if isinstance(node, ast.JoinedStr):
        parts |= set(node.values)
    elif isinstance(node, ast.BinOp):
        parts |= _parts(node.left) | _parts(node.right)
    elif isinstance(node, ast.IfExp):
        parts |= _parts(node.body) | _parts(node.orelse)
    return parts


def _is_helped_by_docstring(node: ast.FunctionDef) -> bool:
    """Whether a decorator makes it a command without other help: `@app.command()`.

    The help of a group is that of its `Typer`, and not the docstring of its callback.
    """
    return any(
        isinstance(each, ast.Call)
        and _last_name(each.func) == "command"
        and all(keyword.arg != "help" for keyword in each.keywords)
        for each in node.decorator_list
    )


def _has_word(text: str) -> bool:
    return re.search(r"[A-Za-z]{2}", text.replace("{...}", "")) is not None


def _is_prose(text: str) -> bool:
    """Whether a text has two words, and is not a statement of a programming language."""
    has_words = _PROSE.search(text.replace("{...}", "N")) is not None and _has_word(text)
    return has_words and not _CODE.match(text)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _one_line(text: str) -> str:
    line = " ".join(text.replace("\b", "").split())
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


def all_messages(folders: Sequence[str] = ()) -> list[Message]:
    found: list[Message] = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(("wire/messages/", "sim/")):
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
