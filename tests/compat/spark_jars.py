"""Downloads Spark's own Kafka connector, to compare our data source with it.

It should have Spark's version. Maven Central has no 4.3.0 of it, and no token provider between
4.0.0 and that. So the newest published connector and the newest published token provider are used
with the installed Spark. State these versions wherever results are published.

`cd tests && python -m compat.spark_jars` prints the jars in the format of `spark.jars`.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import pytest

from compat.toolchain import cache_directory, fetch, tool

CONNECTOR: Final = "4.2.0"
TOKEN_PROVIDER: Final = "4.0.0"
_DEPENDENCIES: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", TOKEN_PROVIDER),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
"""Everything that Spark does not include itself."""
_DEPENDENCY: Final = """    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
"""
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.tests</groupId>
  <artifactId>class-path</artifactId>
  <version>1</version>
  <dependencies>
{}  </dependencies>
</project>
"""


def connector_jars() -> str:
    """Returns the jars, separated by commas; skips if they are not available."""
    maven = tool("mvn", "install Maven")
    directory = cache_directory(f"spark-kafka-connector-{CONNECTOR}-{TOKEN_PROVIDER}")
    path = directory / "classpath"
    if not path.exists() or not all(map(os.path.exists, path.read_text().split(os.pathsep))):
        dependencies = "".join(_DEPENDENCY.format(*each) for each in _DEPENDENCIES)
        (directory / "pom.xml").write_text(_POM.format(dependencies))
        command = [maven, "-B", "-q", "dependency:build-classpath", "-Dmdep.outputFile=classpath"]
        fetch(f"Spark's Kafka connector {CONNECTOR}", command, directory)
    return path.read_text().replace(os.pathsep, ",")


if __name__ == "__main__":
    try:
        print(connector_jars())
    except pytest.skip.Exception as reason:
        sys.exit(f"no connector: {reason}")
