"""Tests the `penstock` program: how it starts, how it ends, and what it loads."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Coroutine
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import log_items, session
from penstock.cli.app import COMMANDS, run
from penstock.cli.main import main
from penstock.ports import Disk
from penstock.testing.slowness import patient
from storage.sample_log import stopped_log

PROGRAM = (sys.executable, "-c", "from penstock.cli.main import main; main()")


def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=patient(60)
    )


def test_version_does_not_load_the_parser() -> None:
    """`--version` is what many users try first, so it must not wait for typer."""
    code = (
        "import sys\n"
        "from penstock.cli.main import main\n"
        "try:\n    main(['--version'])\n"
        "except SystemExit as end:\n"
        "    heavy = {'typer', 'rich', 'pyarrow', 'cramjam', 'uvloop'} & set(sys.modules)\n"
        "    print(end.code, sorted(heavy))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(60),
    )
    assert result.stdout == f"penstock {metadata.version('penstock')}\n0 []\n"


def test_version_works_among_other_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Anywhere before the command."""
    assert run(["--version", "log"]) == 0
    assert capsys.readouterr().out == f"penstock {metadata.version('penstock')}\n"


def test_help_has_examples_and_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """For the program and for each command."""
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert "Examples:\n    penstock up" in out
    assert all(f"\n  {name} " in out for name in COMMANDS)
    for command in (
        *(("log", name) for name in ("dump", "verify")),
        *(("topic", name) for name in ("create", "list", "describe", "alter", "delete")),
        *(("group", name) for name in ("list", "describe", "reset-offsets", "delete")),
        *(("queue", name) for name in ("put", "take", "peek", "stats", "drain", "redrive")),
        *(("queue", name) for name in ("reset-offsets", "delete-offsets")),
        *(("txn", name) for name in ("list", "describe", "abort")),
        *((name,) for name in ("up", "broker", "status", "produce", "consume")),
    ):
        assert run([*command, "--help"]) == 0
        written = capsys.readouterr().out
        assert "Examples:\n" in written
        assert f"penstock {' '.join(command)}" in written.partition("Examples:")[2]


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        (("up",), {"pyarrow", "rich", "penstock.client.cluster", "penstock.cli.supervise"}),
        (
            ("topic", "list", "--json"),
            {"pyarrow", "rich", "penstock.storage.log", "penstock.broker"},
        ),
        (("consume", "x"), {"pyarrow", "rich", "penstock.broker"}),
    ],
)
def test_commands_load_only_what_they_need(command: tuple[str, ...], heavy: set[str]) -> None:
    """Users notice the startup time."""
    code = (
        "import sys\n"
        "from penstock.cli.app import run\n"
        f"run({[*command, '--nonsense']!r})\n"
        f"print(sorted({heavy!r} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(60),
    )
    assert result.stdout == "[]\n"


def test_completion_lists_the_commands() -> None:
    """As the shell requests it, through the environment."""
    environment = {
        **os.environ,
        "_PENSTOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": "penstock to",
        "COMP_CWORD": "1",
    }
    result = subprocess.run(
        [*PROGRAM],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=patient(60),
    )
    assert result.stdout.split() == ["topic", "token"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["log", "nonsense"],
        ["log", "dump"],
        ["log", "dump", "x", "--max", "0"],
        ["log", "dump", "x", "--offset", "-1"],
        ["log", "dump", "x", "--keys", "latin"],
        ["log", "verify", "x", "--nonsense"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The error on stderr refers to the help."""
    assert run(arguments) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert "--help" in written.err


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    """`penstock log dump ... | head -1` ends quietly, like other tools."""
    directory = stopped_log(str(tmp_path)).directory
    reader, writer = os.pipe()
    with subprocess.Popen(
        [*PROGRAM, "log", "dump", directory], stdout=writer, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(writer)
        os.close(reader)
        _, errors = process.communicate(timeout=120)
    assert errors == ""
    assert process.returncode == 141


def test_ctrl_c_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 130, and no stack trace."""

    def interrupted(disk: Disk, path: str) -> list[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr(log_items, "list_files", interrupted)
    with pytest.raises(SystemExit) as end:
        main(["log", "dump", str(tmp_path)])
    assert end.value.code == 130
    written = capsys.readouterr()
    assert (written.out, written.err.strip()) == ("", "")


def test_a_terminal_without_unicode_gets_escapes(tmp_path: Path) -> None:
    """An ellipsis must not cause an encoding error."""
    directory = stopped_log(str(tmp_path)).directory
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "60"}
    result = subprocess.run(
        [*PROGRAM, "log", "dump", directory],
        capture_output=True,
        env=environment,
        check=True,
        timeout=patient(60),
    )
    assert b"\\u2026" in result.stdout
    assert result.stderr == b""


def test_the_exit_code_reaches_the_shell(tmp_path: Path) -> None:
    """0 for sound, 1 for damaged, 2 for unusable."""
    directory = Path(stopped_log(str(tmp_path)).directory)
    assert penstock("log", "verify", str(directory)).returncode == 0
    (directory / "partition.metadata").unlink()
    assert penstock("log", "verify", str(directory)).returncode == 1
    assert penstock("log", "verify", str(directory / "missing")).returncode == 2


def test_a_second_ctrl_c_is_an_interrupt_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it arrives while the loop is closing, asyncio turns it into another error."""

    async def nothing() -> None:
        raise AssertionError("it is not run")

    def closing(main: Coroutine[Any, Any, None]) -> None:
        main.close()
        stopped = RuntimeError("Event loop stopped before Future completed.")
        stopped.__context__ = KeyboardInterrupt()
        raise stopped

    monkeypatch.setattr(asyncio, "run", closing)
    with pytest.raises(KeyboardInterrupt):
        session.run(nothing())
