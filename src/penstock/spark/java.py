"""Checks that there is a Java for Spark: Spark's own error message for that is unclear."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

from penstock.client.errors import ClientError

JAVA_LEAST: Final = 17
_ANSWER_S: Final = 60.0
_INSTALL: Final = (
    f"install it (Debian: apt install openjdk-{JAVA_LEAST}-jre-headless; "
    f"macOS: brew install openjdk@{JAVA_LEAST}), or set JAVA_HOME to its directory"
)


class JavaMissing(ClientError):
    """There is no Java that Spark could run on."""


def check_java(environment: Mapping[str, str] = os.environ) -> None:
    """Raises `JavaMissing`, with one line that says what to do, if there is no Java for Spark."""
    home = environment.get("JAVA_HOME")
    path = environment.get("PATH", os.defpath)
    found = os.path.join(home, "bin", "java") if home else shutil.which("java", path=path)
    if found is None:
        raise JavaMissing(
            f"Spark needs Java {JAVA_LEAST} or newer, but no Java was found: {_INSTALL}"
        )
    try:
        answer = subprocess.run(  # noqa: S603 -- the java that Spark itself would start
            [found, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise JavaMissing(
            f"Spark needs Java {JAVA_LEAST} or newer, but {found} does not run ({reason}): "
            f"{_INSTALL}"
        ) from None
    version = answer.stderr.partition('"')[2].partition('"')[0]
    major = version.removeprefix("1.").partition(".")[0].partition("-")[0]
    if not major.isdecimal() or int(major) < JAVA_LEAST:
        raise JavaMissing(
            f"Spark needs Java {JAVA_LEAST} or newer, but {found} is {version or 'not Java'}: "
            f"{_INSTALL}"
        )
