"""Virtual environments of pipelines, made once for each requirements.txt.

An environment is named by the hash of requirements.txt, of this Python, and of the installed
versions of penstock and PySpark. It sees the packages of this interpreter, so penstock and PySpark
are there; what the project requires comes first. An environment cannot be moved, so it is made
under its final name, under a lock, and a marker file says that it is complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

COMPLETE: Final = "penstock-complete"
REQUIREMENTS: Final = "requirements.txt"
_PIP_S: Final = 1_800.0
_TEXT_MAX: Final = 600


class EnvironmentFailed(Exception):
    """The environment cannot be made; the text says why."""


class Environments:
    """The environments in a folder. Its methods block: call them on a thread."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def python(self, requirements: Path, tell: Callable[[str], None] = lambda _: None) -> str:
        """Returns the Python of the environment for this requirements.txt, and makes it if there is
        none. Without requirements that is this interpreter."""
        try:
            wanted = requirements.read_bytes()
        except FileNotFoundError:
            return sys.executable
        if not _needs_packages(wanted):
            return sys.executable
        folder = self._folder / _name(wanted)
        with _locked(self._folder / f"{folder.name}.lock"):
            if not (folder / COMPLETE).exists():
                tell("installing the packages of requirements.txt")
                shutil.rmtree(folder, ignore_errors=True)
                self._make(folder, requirements)
                (folder / COMPLETE).touch()
        return str(folder / "bin" / "python")

    def _make(self, folder: Path, requirements: Path) -> None:
        _run([sys.executable, "-m", "venv", str(folder)], "cannot make a virtual environment")
        python = str(folder / "bin" / "python")
        site = Path(
            _run(
                [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                "the new virtual environment does not run",
            ).strip()
        )
        # Packages of this interpreter, after those of the environment itself.
        here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        lines = [f"import site; site.addsitedir({path!r})\n" for path in sorted(here)]
        (site / "penstock-packages.pth").write_text("".join(lines), "utf-8")
        _run(
            [
                python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
                "--progress-bar", "off", "-r", str(requirements),
            ],
            "pip cannot install requirements.txt",
            folder=requirements.parent,
        )  # fmt: skip


def _needs_packages(content: bytes) -> bool:
    return any(line.strip() and not line.strip().startswith(b"#") for line in content.splitlines())


def _name(requirements: bytes) -> str:
    found = hashlib.sha256(requirements)
    for part in (sys.version, sys.executable, _version("penstock"), _version("pyspark")):
        found.update(b"\0" + part.encode())
    return found.hexdigest()[:32]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lets one process and one thread at a time into the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str], failing: str, folder: Path | None = None) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        ended = subprocess.run(  # noqa: S603 -- this Python and its pip
            command,
            cwd=folder,
            env=kept,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PIP_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentFailed(f"{failing}: it took longer than {_PIP_S:.0f} s") from None
    except OSError as error:
        raise EnvironmentFailed(f"{failing}: {error.strerror}") from None
    if ended.returncode:
        raise EnvironmentFailed(f"{failing}: {_reason(ended.stderr or ended.stdout)}")
    return ended.stdout


def _reason(text: str) -> str:
    """Returns the lines of pip that say what is wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return "; ".join(errors or lines[-2:])[:_TEXT_MAX] or "it gave no reason"
