"""Toolchains for clients in other languages: downloaded once, kept in the user's cache.

If a tool or its package registry is not available, the tests that need it are skipped with the
reason. If a download fails for any other reason, that is an error.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.slowness import patient, slowness

FETCH_S = 150
RUN_S = 150
HERE = Path(__file__).parent

UNREACHABLE = re.compile(
    r"UnknownHost|Unknown host|Connection (refused|timed out|reset)|connect timed out|"
    r"No route to host|Network is unreachable|Temporary failure in name resolution|"
    r"Could not transfer (artifact|metadata)|transfer failed|Read timed out|in offline mode|"
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENOTCACHED|EHOSTUNREACH|"
    r"ENETUNREACH|network request to .* failed|dial tcp|i/o timeout|module lookup disabled|"
    r"go.mod requires go >= \S+",
    re.IGNORECASE,
)

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.tests</groupId>
  <artifactId>class-path</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
    </dependency>
{more}  </dependencies>
</project>
"""
# The Java client gets tokens from an endpoint with these, but does not bring them.
TOKEN_READERS = """    <dependency>
      <groupId>com.fasterxml.jackson.core</groupId>
      <artifactId>jackson-databind</artifactId>
      <version>2.16.2</version>
    </dependency>
    <dependency>
      <groupId>org.bitbucket.b_c</groupId>
      <artifactId>jose4j</artifactId>
      <version>0.9.6</version>
    </dependency>
"""


def cache_directory(name: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(home) / "penstock-tests" / name
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def tool(name: str, hint: str) -> str:
    """Returns the path of a program, or skips."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on the PATH: {hint}")
    return found


def fetch(what: str, command: Sequence[str], directory: Path) -> None:
    try:
        result = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=patient(FETCH_S),
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what} was not fetched in time")
    output = result.stdout + result.stderr
    if result.returncode and (found := UNREACHABLE.search(output)):
        pytest.skip(f"{what} is not cached and cannot be fetched: {found[0]}")
    assert not result.returncode, f"fetching {what} failed, not for want of a network:\n{output}"


def java_class_path(
    version: str, artifact: str = "kafka-clients", *, reads_tokens: bool = False
) -> str:
    """Returns the jars of one of Kafka's artifacts, in the format of `java -cp`."""
    tool("java", "install a JRE")
    maven = tool("mvn", "install Maven")
    directory = cache_directory(f"{artifact}-{version}" + "-with-token-readers" * reads_tokens)
    path = directory / "classpath"
    if not path.exists() or not all(map(os.path.exists, path.read_text().split(os.pathsep))):
        more = TOKEN_READERS * reads_tokens
        pom = POM.format(artifact=artifact, version=version, more=more)
        (directory / "pom.xml").write_text(pom)
        command = [maven, "-B", "-q", "dependency:build-classpath", "-Dmdep.outputFile=classpath"]
        fetch(f"{artifact} {version}", [*command, "-DincludeScope=runtime"], directory)
    return path.read_text()


def node_modules(packages: Mapping[str, str]) -> Path:
    """Returns a directory with the packages installed in exactly these versions."""
    tool("node", "install Node.js")
    npm = tool("npm", "install npm")
    wanted = {"private": True, "dependencies": dict(packages)}
    directory = cache_directory("node-" + "-".join(f"{k}-{v}" for k, v in packages.items()))
    marker = directory / "installed.json"
    if not marker.exists() or json.loads(marker.read_text()) != wanted:
        (directory / "package.json").write_text(json.dumps(wanted))
        flags = ["--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"]
        fetch(f"npm packages {packages}", [npm, "install", *flags], directory)
        marker.write_text(json.dumps(wanted))
    return directory / "node_modules"


def go_program(name: str, directory: Path) -> str:
    """Returns the path of a program in the folder `go`, compiled into a directory."""
    go = tool("go", "install Go")
    # Go must not download another version of itself, and builds just what go.sum says.
    settings = ["env", "GOTOOLCHAIN=local", "GOFLAGS=-mod=readonly -buildvcs=false", "GOWORK=off"]
    made = str(directory / name)
    fetch(f"Go program {name}", [*settings, go, "build", "-o", made, f"{name}.go"], HERE / "go")
    return made


def java_flags(memory: str = "256m") -> list[str]:
    """For short-lived programs: the first compiler level is enough, and starts faster."""
    slow = f"-Dslowness={slowness():.1f}"
    return ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Xmx{memory}", slow]


def run_scenario(command: Sequence[str], extra: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs a program that prints one JSON object per step. Returns its steps by name.

    Other output on stdout is allowed: some libraries log there.
    """
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=patient(RUN_S),
            env={**os.environ, "SLOWNESS": f"{slowness():.1f}", **(extra or {})},
        )
    except subprocess.TimeoutExpired as late:
        raise AssertionError(
            f"{command[-3:]} took longer than {RUN_S} seconds:\n{late.stdout!r}\n{late.stderr!r}"
        ) from None
    assert result.returncode == 0, f"{result.stdout[-5000:]}\n{result.stderr[-5000:]}"
    steps = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    found = {step.pop("step"): step for step in steps}
    assert found, f"no steps in the output:\n{result.stdout[-2000:]}"
    return found
