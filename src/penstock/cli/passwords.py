"""How commands get a password: from a prompt, a file, an environment variable or stdin.

Never from the command line, which other users of the machine can see, and which shells store.
"""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import CommandFailed

PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help="Read the password from a file; - stdin."),
]


def read_password(file: Path | None, *, what: str, twice: bool) -> str:
    """Returns the password, without a line end. Asks on the terminal if there is no file."""
    if file is not None:
        return _from_file(file)
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandFailed(
            "there is no terminal to ask for the password: give --password-file FILE, or - to read "
            "it from stdin"
        )
    password = getpass.getpass(f"{what}: ")
    if twice and getpass.getpass(f"{what} again: ") != password:
        raise CommandFailed("the two passwords differ: nothing was changed")
    return _checked(password, "the terminal")


def read_variable(name: str) -> str:
    """Returns the value of an environment variable."""
    if name not in os.environ:
        raise CommandFailed(f"the environment variable {name} is not set")
    return _checked(os.environ[name], name)


def _from_file(file: Path) -> str:
    if str(file) == "-":
        return _checked(sys.stdin.readline(), "stdin")
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError:
        raise CommandFailed(f"{file} is not UTF-8 text") from None
    return _checked(text, str(file))


def _checked(text: str, source: str) -> str:
    password = text.rstrip("\r\n")
    if not password or "\n" in password:
        raise CommandFailed(f"{source} must have exactly one line, with the password")
    return password
