"""Finds the definitions of flows in the files of a project. Pure.

Python files are parsed, not run, so this works without Spark. Found are functions with a decorator
of `pyspark.pipelines` (`@dp.table`, `@dp.materialized_view`, `@dp.append_flow`,
`@dp.temporary_view`), calls of `create_auto_cdc_flow`, and in scripts the calls of `queryName`.
SQL files are split at semicolons.

With the definition of a flow goes what it uses in the same project: functions, classes and
constants of its module and of modules that it imports from the project, the temporary views that
it names, and the sink or table that it writes to. A flow whose expectations quarantine rows has a
second flow for them; see `_Expectations` for how they are found. Not followed are names that are
computed, star imports, methods that are called on objects, and packages outside of the project. A
flow whose own name is computed is not found; `ProjectCode.unnamed` lists the functions that define
such flows, and those that use `expect` in a way that is not understood.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

FlowKind = Literal["streaming", "batch"]
_DECORATORS: Final[Mapping[str, str]] = {
    "table": "streaming",
    "append_flow": "streaming",
    "materialized_view": "batch",
    "temporary_view": "view",
}
_SINK: Final = "create_sink"
_TARGETS: Final = (_SINK, "create_streaming_table")
_EXPECT: Final = "expect"
_QUARANTINE: Final = "quarantine"
_STATEMENT: Final = re.compile(
    r"""\s*CREATE\s+(?:OR\s+REFRESH\s+|OR\s+REPLACE\s+)?
    (?P<kind>STREAMING\s+TABLE|MATERIALIZED\s+VIEW|TEMPORARY\s+VIEW|TEMP\s+VIEW|FLOW)\s+
    (?:IF\s+NOT\s+EXISTS\s+)?(?P<name>[`\w.]+)""",
    re.IGNORECASE | re.VERBOSE,
)
_INSERT: Final = re.compile(r"\b(?:INSERT|AUTO\s+CDC)\s+INTO\s+(?P<target>[`\w.]+)", re.IGNORECASE)
_COMMENTS: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(slots=True)
class FlowSource:
    """A flow, with all code that belongs to it."""

    name: str
    kind: FlowKind
    target: str
    python: list[ast.AST] = field(default_factory=list)
    sql: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Module:
    tree: ast.Module
    definitions: dict[str, list[ast.stmt]]
    """What a name is at the top of the module."""
    imports: dict[str, tuple[str, str]]
    """Local name -> module of the project and the name there ("": the module itself)."""
    expects: set[str]
    """The names under which `penstock.spark.expect` is imported."""


_Found = tuple[FlowSource, _Module | None, ast.AST | str]
"""A flow, with the module and the code that define it."""


class ProjectCode:
    """All Python and SQL files of a project. Files that do not parse are left out."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._modules: dict[str, _Module] = {}
        paths = {path for path in files if path.endswith(".py")}
        for path in sorted(paths):
            try:
                tree = ast.parse(files[path])
            except (SyntaxError, ValueError):
                continue
            imports = _imports(tree, path, paths)
            self._modules[path] = _Module(tree, _definitions(tree), imports, _expects(tree))
        self._sql = {path: files[path] for path in sorted(files) if path.endswith(".sql")}
        self._views: dict[str, tuple[_Module, ast.stmt] | str] = {}
        self._outputs: dict[str, ast.stmt] = {}
        self.sinks: set[str] = set()
        """The names of sinks, after `flows`."""
        self.unnamed: list[str] = []
        """Functions that define flows whose names are computed, after `flows`."""
        self._expectations = _Expectations(self._modules)

    def flows(self, paths: Collection[str]) -> list[FlowSource]:
        """Returns the flows that these files define, by name."""
        found: list[_Found] = []
        for path, module in self._modules.items():
            found += self._in_module(module) if path in paths else ()
        for path, text in self._sql.items():
            found += self._in_sql(text) if path in paths else ()
        unused = self._expectations.not_understood(paths)
        self.unnamed += [each for each in unused if each not in self.unnamed]
        for flow, source, definition in found:
            _Closure(self._modules, self._views, self._outputs, flow).add(source, definition)
        return sorted((flow for flow, _, _ in found), key=lambda flow: flow.name)

    def queries(self, entry: str) -> list[FlowSource]:
        """Returns the streaming queries of a script: those that `queryName` names. Each depends on
        the whole script."""
        module = self._modules.get(entry)
        if module is None:
            return []
        names = {
            str(call.args[0].value)
            for call in ast.walk(module.tree)
            if isinstance(call, ast.Call)
            and _last_name(call.func) == "queryName"
            and call.args
            and isinstance(call.args[0], ast.Constant)
        }
        flows = [FlowSource(name, "streaming", name) for name in sorted(names)]
        for flow in flows:
            _Closure(self._modules, {}, {}, flow).add(module, module.tree)
        return flows

    def _in_module(self, module: _Module) -> Iterator[_Found]:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef):
                for decorator in node.decorator_list:
                    kind = _DECORATORS.get(_last_name(_function(decorator)))
                    name = _text(decorator, "name") or node.name
                    if kind == "view":
                        self._views[name] = module, node
                        if (rows := self._quarantine(module, node, _view_kind(node))) is not None:
                            yield rows, module, node
                    elif kind is not None and _has_computed_name(decorator):
                        self.unnamed.append(node.name)
                    elif kind is not None:
                        target = _text(decorator, "target") or name
                        flow_kind: FlowKind = "batch" if kind == "batch" else "streaming"
                        yield FlowSource(name, flow_kind, target), module, node
                        if (quarantine := self._quarantine(module, node, flow_kind)) is not None:
                            yield quarantine, module, node
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                called, call = _last_name(node.value.func), node.value
                if called in _TARGETS and (name := _text(call, "name", position=0)):
                    self._outputs[name] = node
                    if called == _SINK:
                        self.sinks.add(name)
                elif called == "create_auto_cdc_flow" and (target := _text(call, "target", 0)):
                    name = _text(call, "name") or target
                    yield FlowSource(name, "streaming", target), module, node

    def _quarantine(
        self, module: _Module, node: ast.FunctionDef, kind: FlowKind
    ) -> FlowSource | None:
        """Returns the flow of the rows that the expectations of a flow quarantine (see
        `penstock.spark.quarantine`); None if there are none."""
        found = self._expectations.of(module, node)
        if any(each.on_violation is None for each in found):
            self.unnamed.append(node.name)
            return None
        if not any(each.on_violation == _QUARANTINE for each in found):
            return None
        name = f"{node.name}_quarantine"
        if any(each.has_topic for each in found):
            self.sinks.add(f"{name}_topic")
            return FlowSource(name, "streaming", f"{name}_topic")
        for each in found:
            name = name if each.table == "" else each.table or ""
        if not name:
            self.unnamed.append(node.name)
            return None
        return FlowSource(name, kind, name)

    def _in_sql(self, text: str) -> Iterator[_Found]:
        for statement in plain_sql(text).split(";"):
            found = _STATEMENT.match(statement)
            if found is None:
                continue
            name = found["name"].replace("`", "")
            kind = found["kind"].upper().split()[0]
            if kind in ("TEMPORARY", "TEMP"):
                self._views[name] = statement
                continue
            into = _INSERT.search(statement)
            target = into["target"].replace("`", "") if kind == "FLOW" and into else name
            if kind == "STREAMING" and not re.search(r"\bAS\b", statement, re.IGNORECASE):
                continue  # A table that flows write to.
            yield (
                FlowSource(name, "batch" if kind == "MATERIALIZED" else "streaming", target),
                None,
                statement,
            )


class _Expected(NamedTuple):
    """The quarantine that an expectation names. None: the value is not a literal in the code."""

    on_violation: str | None
    table: str | None = ""
    has_topic: bool = False


class _Expectations:
    """Finds the expectations of functions: `@expect(...)`, also under another name, and `@quality`
    with `quality = expect(...)` at the top of a module of the project. Arguments may be constants
    of the project, also as `**OPTIONS`. Every other use of `expect` is not understood."""

    def __init__(self, modules: Mapping[str, _Module]) -> None:
        self._modules = modules
        self._understood: set[int] = set()
        """The ids of the nodes that name `expect`."""

    def of(self, module: _Module, function: ast.FunctionDef) -> list[_Expected]:
        found = []
        for decorator in function.decorator_list:
            place, call = self._resolved(module, decorator)
            if isinstance(call, ast.Call) and self._is_expect(place, call.func):
                self._understood.add(id(call.func))
                found.append(self._expected(place, call))
        return found

    def not_understood(self, paths: Collection[str]) -> list[str]:
        """Returns the functions, or the names at the top of a module, which use `expect` in another
        way, in these modules and all that they import. After `of`."""
        waiting = [path for path in paths if path in self._modules]
        seen: set[str] = set()
        found: list[str] = []
        while waiting:
            path = waiting.pop()
            if path in seen:
                continue
            seen.add(path)
            module = self._modules[path]
            waiting += [each for each, _ in module.imports.values() if each in self._modules]
            found += [_label(node) for node in module.tree.body if self._is_unclear(module, node)]
        return sorted(set(found))

    def _is_unclear(self, module: _Module, statement: ast.stmt) -> bool:
        value = statement.value if isinstance(statement, ast.Assign) else None
        clear = {*self._understood, id(value)}  # `other = expect` is followed where it is used.
        clear |= {
            id(each.func)
            for each in ast.walk(statement)
            if isinstance(each, ast.Call)
            and self._is_expect(module, each.func)
            and self._expected(module, each).on_violation not in (None, _QUARANTINE)
        }
        return any(
            isinstance(each, ast.Name | ast.Attribute)
            and isinstance(each.ctx, ast.Load)
            and id(each) not in clear
            and self._is_expect(module, each)
            for each in ast.walk(statement)
        )

    def _expected(self, module: _Module, call: ast.Call) -> _Expected:
        given = self._arguments(module, call)
        if given is None:
            return _Expected(None)
        kind, table = (given.get(each) for each in ("on_violation", "quarantine_table"))
        topic = given.get("quarantine_topic")
        return _Expected(
            "warn" if kind is None else self._text(module, kind),
            "" if table is None or _is_none(table) else self._text(module, table),
            topic is not None and not _is_none(topic),
        )

    def _arguments(self, module: _Module, call: ast.Call) -> dict[str, ast.expr] | None:
        """Returns the arguments of an expectation by name; None if they are computed."""
        if any(isinstance(each, ast.Starred) for each in call.args):
            return None
        found = dict(zip(("name", "condition", "on_violation"), call.args, strict=False))
        for each in call.keywords:
            if each.arg is not None:
                found[each.arg] = each.value
                continue
            _, options = self._resolved(module, each.value)
            if isinstance(options, ast.Dict):
                for key, value in zip(options.keys, options.values, strict=True):
                    if not isinstance(key, ast.Constant):
                        return None
                    found[str(key.value)] = value
            elif isinstance(options, ast.Call) and _last_name(options.func) == "dict":
                if options.args or any(option.arg is None for option in options.keywords):
                    return None
                found |= {str(option.arg): option.value for option in options.keywords}
            else:
                return None
        return found

    def _text(self, module: _Module, node: ast.expr) -> str | None:
        _, value = self._resolved(module, node)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
        return None

    def _is_expect(self, module: _Module, node: ast.expr) -> bool:
        place, named = self._resolved(module, node)
        return _last_name(named) == _EXPECT or (
            isinstance(named, ast.Name) and named.id in place.expects
        )

    def _resolved(
        self, module: _Module, node: ast.expr, steps: int = 10
    ) -> tuple[_Module, ast.expr]:
        """Follows a name to the value that it has at the top of a module. A name that several
        statements define is not followed."""
        match node:
            case ast.Name(id=name):
                attribute = ""
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                pass
            case _:
                return module, node
        path, inner = module.imports.get(name, ("", ""))
        if path in self._modules and (wanted := inner or attribute):
            module, node = self._modules[path], ast.Name(wanted)
            return self._resolved(module, node, steps - 1) if steps else (module, node)
        match module.definitions.get(name, ()):
            case [ast.Assign(value=value)] | [ast.AnnAssign(value=ast.expr() as value)]:
                if steps and not attribute:
                    return self._resolved(module, value, steps - 1)
        return module, node


class _Closure:
    """Collects what a flow uses."""

    def __init__(
        self,
        modules: Mapping[str, _Module],
        views: Mapping[str, tuple[_Module, ast.stmt] | str],
        outputs: Mapping[str, ast.stmt],
        flow: FlowSource,
    ) -> None:
        self._modules = modules
        self._views = views
        self._flow = flow
        self._seen: set[int] = set()
        if (output := outputs.get(flow.target)) is not None:
            flow.python.append(output)

    def add(self, module: _Module | None, definition: ast.AST | str) -> None:
        if isinstance(definition, str):
            self._flow.sql.append(definition)
            self._add_views(definition)
            return
        if id(definition) in self._seen:
            return
        self._seen.add(id(definition))
        self._flow.python.append(definition)
        assert module is not None, "Python is in a module"
        for node in ast.walk(definition):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._add_views(node.value)
            elif isinstance(node, ast.Name):
                self._add_name(module, node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                self._add_name(module, node.value.id, node.attr)

    def _add_name(self, module: _Module, name: str, attribute: str = "") -> None:
        for definition in module.definitions.get(name, ()):
            self.add(module, definition)
        path, inner = module.imports.get(name, ("", ""))
        if path and path in self._modules and (wanted := inner or attribute):
            self._add_name(self._modules[path], wanted)

    def _add_views(self, text: str) -> None:
        for name in set(re.findall(r"[\w.]+", text)):
            view = self._views.get(name)
            if isinstance(view, str):
                if view not in self._flow.sql:
                    self.add(None, view)
            elif view is not None:
                self.add(*view)


def plain_sql(text: str) -> str:
    """Returns SQL without comments and with single spaces."""
    return " ".join(_COMMENTS.sub(" ", text).split())


def _label(node: ast.stmt) -> str:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name), *_]):
            return name
    return _EXPECT


def _expects(tree: ast.Module) -> set[str]:
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == _EXPECT
    }


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _view_kind(node: ast.FunctionDef) -> FlowKind:
    """Returns whether a view is a stream, as far as its own code shows it."""
    names = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return "batch" if "read" in names and "readStream" not in names else "streaming"


def _definitions(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    found: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.setdefault(name, []).append(node)
            case ast.Assign(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append(node)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.setdefault(name, []).append(node)
    return found


def _imports(tree: ast.Module, path: str, paths: set[str]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if file := _module_file(alias.name, path, paths):
                    found[alias.asname or alias.name.partition(".")[0]] = file, ""
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for alias in node.names:
                local = alias.asname or alias.name
                if file := _module_file(f"{module}.{alias.name}".strip("."), path, paths):
                    found[local] = file, ""
                elif file := _module_file(module, path, paths):
                    found[local] = file, alias.name
    return found


def _module_file(module: str, path: str, paths: set[str]) -> str:
    """Returns the file of a module: beside the file that imports it, or from the project's
    folder."""
    inner = module.replace(".", "/")
    for folder in (posixpath.dirname(path), ""):
        for name in (f"{inner}.py", f"{inner}/__init__.py"):
            if inner and (found := posixpath.join(folder, name)) in paths:
                return found
    return ""


def _function(decorator: ast.expr) -> ast.expr:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def _has_computed_name(decorator: ast.expr) -> bool:
    return _given(decorator, "name") and not _text(decorator, "name")


def _given(decorator: ast.expr, keyword: str) -> bool:
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else ()
    return any(
        each.arg == keyword
        and not (isinstance(each.value, ast.Constant) and each.value.value is None)
        for each in keywords
    )


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _text(call: ast.expr, keyword: str, position: int | None = None) -> str:
    """Returns an argument of a call if it is a text."""
    if not isinstance(call, ast.Call):
        return ""
    values = [each.value for each in call.keywords if each.arg == keyword]
    if not values and position is not None and len(call.args) > position:
        values = [call.args[position]]
    match values:
        case [ast.Constant(value=str() as text)]:
            return text
    return ""
