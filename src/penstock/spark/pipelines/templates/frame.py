"""What all project templates share: the project file, the generator and the list of ignored files.

In the files of a template, `$name` is the name of the project, and the name of each of its topics
begins with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import Final

_SPEC: Final = Template("""\
# A pipeline on Spark: https://spark.apache.org/docs/latest/declarative-pipelines-programming-guide.html
#
#   penstock pipeline run         read all new records, bring the tables up to date, stop
#   penstock pipeline dry-run     check the definitions without running them
#   penstock pipeline test        run the tests in tests/, without a broker
#
# Tables are stored in spark-warehouse; metastore_db lists them for the next run. Spark's own tool
# does the same with: spark-pipelines run --conf spark.sql.catalogImplementation=hive
name: $name
# The progress of each flow. If you delete it, the next run reads everything again (as does
# run --full-refresh).
storage: $storage
libraries:
  - glob:
      include: transformations/**
configuration:
  # The addresses of the brokers; --bootstrap and PENSTOCK_BOOTSTRAP override it.
  spark.penstock.bootstrap: "$bootstrap"
  # Topics that a run creates if they do not exist: name:partitions.
  spark.penstock.topics: "$topics"
  spark.sql.shuffle.partitions: "4"
""")

_GENERATE: Final = Template('''\
"""$title to try the pipeline with.

    python generate.py [--count N] [--bootstrap HOST:PORT]
"""

import argparse
import json
import os
import random
import sys
$imports
from pathlib import Path

from penstock import ClientError, Producer
from penstock.spark.pipelines.project_topics import create_topics

parser = argparse.ArgumentParser()
parser.add_argument("--count", type=int, default=1_000)
parser.add_argument("--bootstrap", default=os.environ.get("PENSTOCK_BOOTSTRAP", "$bootstrap"))
given = parser.parse_args()

$before
try:
    create_topics(Path(__file__).parent, given.bootstrap)
    with Producer(given.bootstrap) as producer:
$send
except ClientError as error:
    sys.exit(f"generate.py: {error}")
print(f"sent {given.count} $things")
''')

_IGNORE: Final = """\
.penstock/
.pytest_cache/
pipeline-storage/
spark-warehouse/
metastore_db/
derby.log
__pycache__/
"""

_PYTEST: Final = """\
# With this file, the settings of a project around this one do not apply to the tests here.
[pytest]
testpaths = tests
"""


def once_text(file: str, topic: str) -> str:
    """Returns the part of a README about a sink: which delivery was chosen, and the other one."""
    return f"""
## At least once, or exactly once

`{file}` sends at least once: after a crash, some records may be sent twice. To send each record
once, replace `"delivery": "at_least_once"` there by

    "delivery": "exactly_once",
    "sink": "$name-{topic}",

It is not the default, because the name of such a sink belongs to one checkpoint. A copy of the
project that runs elsewhere, as in a test beside the deployed pipeline, needs another name. So does
a run that begins again (`--full-refresh`, `--reset`), unless the name is given up first:
`penstock group delete $name-{topic}`. Readers of the topic must read committed records only
(`isolation_level="read_committed"`).
"""


@dataclass(frozen=True, slots=True)
class Generator:
    """The parts of `generate.py` that differ: code at the top, and in the `with` block."""

    title: str
    things: str
    send: str
    before: str = ""
    imports: str = ""


@dataclass(frozen=True, slots=True)
class ProjectTemplate:
    name: str
    summary: str
    topics: Mapping[str, int]
    """Topic without the project's name -> number of partitions."""
    generator: Generator
    files: Mapping[str, str]
    """Path -> content, in which `$name` is the name of the project."""

    def render(self, name: str, bootstrap: str, storage: str) -> dict[str, str]:
        """Returns path -> content, the project file first."""
        words = {"name": name, "bootstrap": bootstrap, "storage": storage}
        topics = ", ".join(f"{name}-{topic}:{count}" for topic, count in self.topics.items())
        made = self.generator
        indented = "".join(f"        {line}".rstrip() + "\n" for line in made.send.splitlines())
        generate = _GENERATE.substitute(
            words,
            title=made.title,
            things=made.things,
            imports=made.imports,
            before=made.before.strip("\n"),
            send=indented.rstrip("\n"),
        )
        generate = generate.replace("import sys\n\nfrom pathlib", "import sys\nfrom pathlib")
        generate = generate.replace("\n\n\ntry:", "\n\ntry:")
        return {
            "spark-pipeline.yml": _SPEC.substitute(words, topics=topics),
            **{path: Template(text).substitute(words) for path, text in self.files.items()},
            "generate.py": Template(generate).safe_substitute(words),
            "pytest.ini": _PYTEST,
            ".gitignore": _IGNORE,
        }
