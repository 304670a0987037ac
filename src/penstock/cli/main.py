"""The entry point: decides how much of the program to load, and how it ends.

Starting time is what people notice first about a command line, so this module imports next to
nothing: `--version` needs no parser, and a command loads its own module and no other's.

How a run ends, for scripts:

    0    done; for `verify`, everything is sound
    1    done, and what was found is not sound; or the cluster refused, all or a part
    2    not done: wrong usage, or a path or a cluster that cannot be used
    130  stopped with Ctrl-C
    141  whoever read the output went away (`| head`)
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
    """The `penstock` command. Always ends with `SystemExit`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that cannot show a character gets its code, not a stack trace.
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
    """Close what cannot be flushed, or the interpreter would try again on its way out."""
    with suppress(BrokenPipeError):
        sys.stdout.close()


if __name__ == "__main__":
    main()
