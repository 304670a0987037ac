"""The entry point of the `penstock` command. Chooses what to load, and sets the exit code.

Startup time is the first thing that people notice about a command line, so this module imports
almost nothing: `--version` needs no parser, and a command loads only its own module.

Exit codes, for scripts:

    0    success; for `verify`, everything is sound
    1    the command ran and found a problem, or the cluster refused all or part of the request
    2    the command did not run: wrong usage, or a path or a cluster that cannot be used
    130  stopped with Ctrl-C
    141  the reader of the output closed the pipe (`| head`)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper

EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the `penstock` command. Always raises `SystemExit`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A character that the terminal cannot show is escaped; it causes no stack trace.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        code = EXIT_PIPE_CLOSED
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    raise SystemExit(code)


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        from importlib import metadata  # noqa: PLC0415 -- slow to load, and only this needs it

        sys.stdout.write(f"penstock {metadata.version('penstock')}\n")
        return 0
    # By name: typer alone takes longer to load than `--version` may take.
    code: int = import_module("penstock.cli.app").run(arguments)
    return code


def _forget_output() -> None:
    """Closes stdout, which cannot be flushed: otherwise the interpreter tries again at exit."""
    with suppress(BrokenPipeError):
        sys.stdout.close()


if __name__ == "__main__":
    main()
