"""Makes fingerprints of flows, from which `checkpoint_rules` tells what a change does. Pure.

A fingerprint has five parts, `1:streaming:stateless:SOURCES:PLACE:DEFINITION`. The last three are
hashes. SOURCES are the streams that the flow reads, in their order. PLACE is where Spark looks for
the checkpoint: catalog, database and target. DEFINITION is all code of the flow, without comments,
docstrings and formatting.

Limits: what is stateful and what is read is found by the names of methods and options in the code
of the flow (see `flow_sources` for what that is). A streaming flow whose sources cannot be found
counts as changed in its sources whenever its definition changes. A join counts as stateful if the
flow reads two streams or more. Changes of packages in requirements.txt are not seen.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.spark.deployments.flow_sources import FlowKind, FlowSource, ProjectCode, plain_sql

_FORMAT: Final = "1"
_PARTS: Final = 6
_QUARANTINE: Final = "_quarantine"
"""The suffix of a flow that receives the quarantined rows of another flow."""
_HASH_DIGITS: Final = 16
_STATEFUL: Final = frozenset(
    {
        "agg",
        "applyInPandasWithState",
        "create_auto_cdc_flow",
        "cube",
        "distinct",
        "dropDuplicates",
        "dropDuplicatesWithinWatermark",
        "drop_duplicates",
        "flatMapGroupsWithState",
        "groupBy",
        "groupby",
        "limit",
        "mapGroupsWithState",
        "rollup",
        "session_window",
        "transformWithState",
        "transformWithStateInPandas",
        "window",
    }
)
_JOINS: Final = frozenset({"join", "crossJoin"})
_SQL_STATEFUL: Final = re.compile(
    r"\bGROUP\s+BY\b|\bDISTINCT\b|\bLIMIT\b|\bAUTO\s+CDC\b", re.IGNORECASE
)
_SQL_SELECT: Final = re.compile(r"\bSELECT\b", re.IGNORECASE)
_SQL_JOIN: Final = re.compile(r"\bJOIN\b", re.IGNORECASE)
_SQL_STREAM: Final = re.compile(r"\bSTREAM\s*\(?\s*([`\w.]+(?:\s*\([^)]*\))?)", re.IGNORECASE)
_SOURCE_OPTIONS: Final = frozenset({"subscribe", "subscribepattern", "assign", "path"})
_READING: Final = frozenset({"format", "table", "load", "csv", "json", "orc", "parquet", "text"})


@dataclass(frozen=True, slots=True)
class Fingerprint:
    kind: FlowKind
    stateful: bool
    sources: str
    place: str
    definition: str

    def __str__(self) -> str:
        state = "stateful" if self.stateful else "stateless"
        return ":".join((_FORMAT, self.kind, state, self.sources, self.place, self.definition))


def parse_fingerprint(text: str) -> Fingerprint | None:
    """Returns the fingerprint, or None if another version of Penstock has written it."""
    parts = text.split(":")
    if len(parts) != _PARTS or parts[0] != _FORMAT:
        return None
    _, kind, state, *hashes = parts
    if kind not in ("streaming", "batch") or state not in ("stateful", "stateless"):
        return None
    return Fingerprint("batch" if kind == "batch" else "streaming", state == "stateful", *hashes)


def quarantine_flow(flow: str, flows: Mapping[str, str]) -> str:
    """Returns the flow that gets the quarantined rows of a flow; empty if none is known. It has the
    name of the function, which may not be that of the flow, and the same code. `flows` maps the
    flows of a version to their fingerprints."""
    if (named := f"{flow}{_QUARANTINE}") in flows:
        return named
    own = parse_fingerprint(flows.get(flow, ""))
    if own is None or flow.endswith(_QUARANTINE):
        return ""
    for other in sorted(flows):
        found = parse_fingerprint(flows[other])
        if other.endswith(_QUARANTINE) and found and found.definition == own.definition:
            return other
    return ""


def project_flows(
    files: Mapping[str, str], definitions: Collection[str], home: str
) -> tuple[dict[str, str], list[str]]:
    """Returns the fingerprint of each flow of a declarative project, and the functions that define
    flows whose names are computed.

    `files` are all Python and SQL files, path -> text; `definitions` are the paths of those that
    define flows; `home` are catalog and database.
    """
    code = ProjectCode(files)
    flows = code.flows(definitions)
    return {flow.name: str(_fingerprint(flow, home)) for flow in flows}, code.unnamed


def script_flows(files: Mapping[str, str], entry: str) -> dict[str, str]:
    """Returns the fingerprint of each named query of a script."""
    return {flow.name: str(_fingerprint(flow, "")) for flow in ProjectCode(files).queries(entry)}


def _fingerprint(flow: FlowSource, home: str) -> Fingerprint:
    code = [_plain(node) for node in flow.python]
    sql = [*flow.sql, *(text for node in code for text in _statements(node))]
    definition = sorted({*flow.sql, *map(ast.unparse, code)})
    constants = _constants(code)
    sources = [source for node in code for source in _sources(node, constants)]
    sources += [name for text in sql for name in _SQL_STREAM.findall(text)]
    if not sources and flow.kind == "streaming":
        sources = ["unknown", *definition]
    return Fingerprint(
        flow.kind,
        _is_stateful(code, sql, len(sources)),
        _hashed(sources),
        _hashed([home, flow.target]),
        _hashed(definition),
    )


def _hashed(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_HASH_DIGITS]


def _plain(node: ast.AST) -> ast.AST:
    """Returns the code without comments, docstrings, annotations and the texts for people."""
    plain: ast.AST = _Plain().visit(ast.parse(ast.unparse(node)))
    return plain


class _Plain(ast.NodeTransformer):
    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._without_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._without_docstring(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self._without_docstring(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.keywords = [each for each in node.keywords if each.arg != "comment"]
        return self.generic_visit(node)

    def _without_docstring(self, node: ast.Module | ast.ClassDef | ast.FunctionDef) -> ast.AST:
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)


def _statements(node: ast.AST) -> Iterator[str]:
    """Yields the texts in the code that look like SQL."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            text = plain_sql(each.value)
            if _SQL_SELECT.search(text):
                yield text


def _is_stateful(code: Sequence[ast.AST], sql: Sequence[str], sources: int) -> bool:
    names = {
        each.attr if isinstance(each, ast.Attribute) else each.id
        for node in code
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute | ast.Name)
    }
    if names & _STATEFUL or any(_SQL_STATEFUL.search(text) for text in sql):
        return True
    joins = bool(names & _JOINS) or any(_SQL_JOIN.search(text) for text in sql)
    return joins and sources > 1


def _constants(code: Sequence[ast.AST]) -> dict[str, str]:
    """Returns the values of the constants that the flow uses."""
    return {
        target.id: ast.unparse(node.value)
        for module in code
        if isinstance(module, ast.Module)
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _sources(node: ast.AST, constants: Mapping[str, str]) -> Iterator[str]:
    """Yields a text for each stream that the code reads."""
    chains = [each for each in ast.walk(node) if isinstance(each, ast.Call) and _reads(each)]
    inner = {id(link) for chain in chains for link in _links(chain.func)}
    for chain in chains:
        if id(chain) in inner:
            continue
        parts = [part for link in _links(chain) for part in _source_parts(link, constants)]
        yield " ".join(sorted(parts))


def _reads(call: ast.Call) -> bool:
    """Whether this call ends the part of a chain that defines a source: `readStream...load()`."""
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr in _READING - {"format"}
        and any(
            isinstance(link, ast.Attribute) and link.attr == "readStream" for link in _links(call)
        )
    )


def _links(node: Any) -> Iterator[ast.expr]:
    """Yields the parts of a chain of calls, the last first."""
    while isinstance(node, ast.Call | ast.Attribute):
        yield node
        node = node.func if isinstance(node, ast.Call) else node.value


def _source_parts(link: ast.expr, constants: Mapping[str, str]) -> Iterator[str]:
    if not isinstance(link, ast.Call) or not isinstance(link.func, ast.Attribute):
        return
    name = link.func.attr
    if name in _READING and link.args:
        yield f"{name}={_value(link.args[0], constants)}"
    elif name == "option" and len(link.args) == 2:
        key = _value(link.args[0], constants).strip("'\"").lower()
        if key in _SOURCE_OPTIONS:
            yield f"{key}={_value(link.args[1], constants)}"
    elif name == "options":
        for each in link.keywords:
            if each.arg is None:
                yield f"options={_value(each.value, constants)}"
            elif each.arg.lower() in _SOURCE_OPTIONS:
                yield f"{each.arg.lower()}={_value(each.value, constants)}"


def _value(node: ast.expr, constants: Mapping[str, str]) -> str:
    if isinstance(node, ast.Name):
        return constants.get(node.id, node.id)
    return ast.unparse(node)
