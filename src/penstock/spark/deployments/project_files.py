"""Reads what is deployed: a project's folder, or a script with its folder.

Checks everything that needs no Spark: the project file, that its definitions exist and are Python
or SQL, that Python files compile, and names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.spark.deployments import archive
from penstock.spark.deployments.flow_fingerprints import project_flows, script_flows
from penstock.spark.deployments.model import NAME, Kind
from penstock.spark.deployments.recompute_parts import project_parts
from penstock.spark.deployments.requirements_text import check_requirements
from penstock.spark.deployments.storage_place import not_a_place, storage_place
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.project import find_project, read_spec
from penstock.spark.pipelines.recompute_scope import PipelineParts

_CODE: Final = (".py", ".sql")
_CATALOG: Final = "spark_catalog"
_DATABASE: Final = "default"


@dataclass(frozen=True, slots=True)
class PreparedFiles:
    """A project that is ready to be deployed."""

    name: str
    """The name in the project file, or that of the script."""
    kind: Kind
    root: Path
    entry: str
    bootstrap: str
    """The brokers that the project names; empty if it names none."""
    storage: str
    """The storage in the project file, if it is a URL that other machines reach."""
    requirements: str
    flows: dict[str, str]
    unnamed: list[str]
    """Functions that define flows whose names are computed: these flows are not in `flows`."""
    archive: bytes = field(repr=False)
    parts: PipelineParts | None = None
    """What a recompute has to know, if the code says it."""


def prepare(given: Path) -> PreparedFiles:
    """Returns what is deployed, or raises `PipelineError` with the first mistake."""
    if given.suffix == ".py":
        return _prepare_script(given)
    project = find_project(given)
    content = read_spec(project.spec)
    ignored = _own_storage(project.root, content)
    check_requirements(project.root)
    texts = _texts(project.root, ignored)
    definitions = list(_definitions(project.root, project.spec, content, texts))
    catalog = content.get("catalog") or _CATALOG
    database = content.get("database") or content.get("schema") or _DATABASE
    flows, unnamed = project_flows(texts, definitions, f"{catalog}.{database}")
    return PreparedFiles(
        project.name,
        "project",
        project.root,
        project.spec.name,
        project.bootstrap,
        _shared_storage(content),
        archive.requirements_hash(project.root),
        flows,
        unnamed,
        archive.pack(project.root, ignored),
        project_parts(texts, definitions),
    )


def check_name(name: str) -> str:
    """Returns the name of a deployment, or raises `PipelineError`."""
    if not NAME.fullmatch(name):
        raise PipelineError(
            f"{name!r} cannot be the name of a deployment: give another with --name, of at most 64 "
            "lower-case letters, digits, dots, underscores and hyphens"
        )
    return name


def _prepare_script(script: Path) -> PreparedFiles:
    if not script.is_file():
        raise PipelineError(f"{script} does not exist: give a script, or the folder of a project")
    root = script.resolve().parent
    check_requirements(root)
    texts = _texts(root, [])
    if script.name not in texts:
        raise PipelineError(f"{script} is listed in .penstockignore: remove it from there")
    return PreparedFiles(
        script.stem.lower().replace("_", "-"),
        "script",
        root,
        script.name,
        "",
        "",
        archive.requirements_hash(root),
        script_flows(texts, script.name),
        [],
        archive.pack(root),
    )


def _texts(root: Path, ignored: list[str]) -> dict[str, str]:
    """Returns the Python and SQL files. Raises `PipelineError` for Python that does not compile."""
    found: dict[str, str] = {}
    for path in archive.project_files(root, ignored):
        if not path.endswith(_CODE):
            continue
        try:
            text = (root / path).read_text("utf-8")
            if path.endswith(".py"):
                compile(text, path, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise PipelineError(f"{path}, line {error.lineno}: {error.msg}") from None
        except (UnicodeDecodeError, ValueError) as error:
            raise PipelineError(f"{path} is not valid UTF-8 text: {error}") from None
        except OSError as error:
            raise PipelineError(f"{path} cannot be read: {error.strerror}") from None
        found[path] = text
    return found


def _definitions(
    root: Path, spec: Path, content: Mapping[str, Any], texts: Mapping[str, str]
) -> Iterator[str]:
    """Yields the paths of the files that define flows: those that `libraries` names."""
    listed = content.get("libraries")
    if not isinstance(listed, list) or not listed:
        raise PipelineError(
            f"{spec.name} has no libraries: add where the definitions are, such as\n"
            "libraries:\n  - glob:\n      include: transformations/**"
        )
    number = 0
    for pattern in map(_pattern, listed):
        if pattern is None:
            raise PipelineError(f"{spec.name}: write libraries as '- glob: {{include: PATTERN}}'")
        for path in _matching(root, spec, pattern):
            name = path.relative_to(root).as_posix()
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            if not name.endswith(_CODE):
                raise PipelineError(f"{name} is neither Python nor SQL: move it out of {pattern}")
            if name not in texts:
                raise PipelineError(
                    f"{name} is a definition, but is listed in .penstockignore: remove it from "
                    "there"
                )
            number += 1
            yield name
    if not number:
        raise PipelineError(f"no file matches the libraries of {spec.name}: correct the patterns")


def _matching(root: Path, spec: Path, pattern: str) -> list[Path]:
    try:
        return sorted(root.glob(f"{pattern}/*" if pattern.endswith("/**") else pattern))
    # The standard library has a different one for each mistake and each version of Python.
    except (ValueError, IndexError, NotImplementedError, re.error, OSError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or error
        raise PipelineError(
            f"{spec.name}: the pattern {pattern!r} in libraries cannot be used ({reason}): write "
            "one such as transformations/**"
        ) from None


def _pattern(entry: object) -> str | None:
    match entry:
        case {"glob": {"include": str() as pattern}} if pattern:
            outside = pattern.startswith("/") or ".." in re.split(r"[/\\]", pattern)
            return None if outside else pattern
    return None


def _own_storage(root: Path, content: Mapping[str, Any]) -> list[str]:
    """Returns what to ignore so that the project's own tables and checkpoints are not deployed."""
    storage = content.get("storage")
    if not isinstance(storage, str) or ("://" in storage and not storage.startswith("file:")):
        return []
    try:
        path = Path(urlsplit(storage).path if storage.startswith("file:") else storage)
        folder = (root / path).resolve()
    except ValueError as error:
        raise not_a_place(storage, error) from None
    if folder == root or not folder.is_relative_to(root):
        return []
    return [f"/{folder.relative_to(root).as_posix()}/"]


def _shared_storage(content: Mapping[str, Any]) -> str:
    storage = content.get("storage")
    if not isinstance(storage, str) or "://" not in storage or storage.startswith("file:"):
        return ""
    storage_place(storage)  # Raises if it is not a URL.
    return storage
