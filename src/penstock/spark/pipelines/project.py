"""A pipeline project: a folder with a `spark-pipeline.yml`.

The file has Spark's own format, so `spark-pipelines run` accepts it, too. Some settings in its
`configuration` are for Penstock: the addresses of brokers, the topics that must exist before a run,
and how much a recompute reads in a micro-batch from sources that have no limit.

    configuration:
      spark.penstock.bootstrap: "localhost:9092"
      spark.penstock.topics: "clicks:3, page_counts:1"
      spark.penstock.recompute.maxBytesPerTrigger: "256m"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.spark.pipelines.errors import PipelineError

SPEC_NAMES: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
BOOTSTRAP_SETTING: Final = "spark.penstock.bootstrap"
TOPICS_SETTING: Final = "spark.penstock.topics"
RECOMPUTE_LIMIT_SETTING: Final = "spark.penstock.recompute.maxBytesPerTrigger"
RECOMPUTE_LIMIT: Final = "256m"
"""How much a recompute reads in a micro-batch, from sources without a limit. The default."""


@dataclass(frozen=True, slots=True)
class Project:
    root: Path
    spec: Path
    name: str
    configuration: Mapping[str, str]

    @property
    def bootstrap(self) -> str:
        return self.configuration.get(BOOTSTRAP_SETTING, "")

    @property
    def topics(self) -> dict[str, int]:
        """Topic -> number of partitions with which it is created if it does not exist."""
        return parse_topics(self.configuration.get(TOPICS_SETTING, ""))


def parse_topics(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (piece.strip() for piece in part.partition(":"))
        if not name or (number and not (number.isdecimal() and int(number))):
            raise PipelineError(
                f"{TOPICS_SETTING} has {part!r}: write topics as name or name:partitions, "
                "separated by commas"
            )
        found[name] = int(number or 1)
    return found


def find_project(start: Path) -> Project:
    """Returns the project in a folder, or in the nearest folder above it."""
    if start.is_file():
        return load_project(start)
    if not start.is_dir():
        raise PipelineError(f"{start} does not exist: give the folder of a pipeline project")
    for folder in (start.resolve(), *start.resolve().parents):
        found = [folder / name for name in SPEC_NAMES if (folder / name).is_file()]
        if len(found) > 1:
            raise PipelineError(f"{folder} has both {' and '.join(SPEC_NAMES)}: keep one")
        if found:
            return load_project(found[0])
    raise PipelineError(
        f"{start.resolve()} has no {SPEC_NAMES[0]}, nor does a folder above it: "
        "create a project with: penstock pipeline init NAME"
    )


def load_project(spec: Path) -> Project:
    content = read_spec(spec)
    name = content.get("name")
    if not isinstance(name, str) or not name:
        raise PipelineError(f"{spec} has no name: add a line such as 'name: clicks'")
    given = content.get("configuration") or {}
    if not isinstance(given, dict):
        raise PipelineError(f"{spec}: configuration must be settings, such as 'spark.x: \"y\"'")
    wrong = [str(key) for key, value in given.items() if not isinstance(value, str)]
    if wrong:
        raise PipelineError(f"{spec}: configuration {', '.join(wrong)} must be text: add quotes")
    return Project(spec.parent.resolve(), spec.resolve(), name, given)


def read_spec(spec: Path) -> dict[str, Any]:
    try:
        import yaml  # type: ignore[import-untyped] # noqa: PLC0415 (comes with pyspark's extra)
    except ImportError:
        raise PipelineError(
            'pipelines need PySpark with its extras: pip install "penstock[spark]"'
        ) from None
    try:
        content = yaml.safe_load(spec.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise PipelineError(f"{spec} is not YAML: {reason}") from None
    except OSError as error:
        raise PipelineError(f"{spec} cannot be read: {error.strerror}") from None
    if not isinstance(content, dict):
        raise PipelineError(f"{spec} must be a mapping of settings that starts with 'name: ...'")
    return content
