"""Creates the topics of a project, with the numbers of partitions that its file gives.

    create_topics(Path("shop"), "localhost:9092")

The generator of a project calls it before it sends: a topic that a producer creates by itself has
the broker's default number of partitions.
"""

from __future__ import annotations

from pathlib import Path

from penstock.spark.pipelines.project import find_project
from penstock.spark.pipelines.runner import prepare_topics


def create_topics(folder: Path, bootstrap: str) -> list[str]:
    """Creates the topics of the project in a folder that do not exist. Returns their names."""
    return prepare_topics(bootstrap, find_project(folder).topics)
