"""Compiles our Java programs against a version of the Java client.

`cd tests && python -m compat.java_build DIRECTORY PROGRAM` prints the class path, for benchmarks.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from compat.toolchain import HERE, java_class_path, tool
from penstock.testing.slowness import patient

VERSIONS = ["3.9.2", "4.4.0"]
COMPILE_S = 150


@cache
def compiled(version: str, directory: Path, *names: str, reads_tokens: bool = False) -> str:
    """Returns the class path of these programs, compiled into a directory; skips without Java."""
    jars = java_class_path(version, reads_tokens=reads_tokens)
    compiler = tool("javac", "install a JDK")
    sources = [str(Path(HERE, "java", f"{name}.java")) for name in ("Patience", *names)]
    result = subprocess.run(
        [compiler, "-nowarn", "-cp", jars, "-d", str(directory), *sources],
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(COMPILE_S),
    )
    assert result.returncode == 0, result.stderr
    return f"{directory}:{jars}"


if __name__ == "__main__":
    try:
        print(compiled(VERSIONS[-1], Path(sys.argv[1]), *sys.argv[2:]))
    except pytest.skip.Exception as reason:
        sys.exit(f"no Java client: {reason}")
