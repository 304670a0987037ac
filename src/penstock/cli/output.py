"""Output functions that all commands share.

People get text that fits their terminal. Programs get JSON on stdout, and nothing else is printed
there. Data from a log can contain anything, so it is never printed raw: a terminal obeys control
characters.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum

EXIT_UNSOUND = 1
EXIT_UNUSABLE = 2
ELLIPSIS = "…"
_NOT_JSON = object()


class CommandFailed(Exception):
    """The command fails. The user sees the message, on one line."""

    def __init__(self, message: str, code: int = EXIT_UNUSABLE) -> None:
        super().__init__(message)
        self.code = code


class PipeClosed(Exception):
    """The reader of the output closed the pipe."""


class Shown(StrEnum):
    """How the bytes of a key or a value are shown."""

    TEXT = "text"
    HEX = "hex"
    JSON = "json"


def emit(text: str) -> None:
    sys.stdout.write(text + "\n")


def json_text(value: object) -> str:
    """Returns the value as one line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def emit_json(value: object) -> None:
    emit(json_text(value))


def width() -> int:
    """Returns the number of columns: COLUMNS, the terminal's width, or 80."""
    return shutil.get_terminal_size().columns


def explain(error: OSError) -> str:
    """Returns an error message for a failed system call that says what to do."""
    path = error.filename or "a file"
    match error:
        case FileNotFoundError():
            return f"{path} does not exist: check the path"
        case PermissionError():
            return f"{path} is not readable: run this as the user that runs the broker"
        case NotADirectoryError():
            return f"{path} is not a directory: give the directory of a log"
        case IsADirectoryError():
            return f"{path} is a directory: give a file"
    return f"{path}: {error.strerror or error}: check the disk"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size_text(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def time_text(timestamp_ms: int) -> str:
    """Returns the time in UTC with milliseconds, or the number if it is out of range."""
    if timestamp_ms < 0:
        return "no time"
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def printable(text: str) -> str:
    """Returns the text with all characters that a terminal might obey escaped."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def bytes_text(data: bytes | None, shown: Shown, columns: int | None = None) -> str:
    """Returns bytes as text of at most `columns` characters. Binary data is always shown as hex."""
    if data is None:
        return "null"
    # Decoding bytes that are not shown would make a listing of large values slow.
    cut = data if columns is None else data[: 4 * columns + 4]
    text = _decoded(cut, whole=len(cut) == len(data))
    if shown is Shown.HEX or text is None:
        return _fit("0x" + cut.hex(), columns, len(data) > len(cut))
    if shown is Shown.JSON and len(cut) == len(data):
        value = _parsed(text)
        if value is not _NOT_JSON:
            return _fit(printable(json.dumps(value, ensure_ascii=False)), columns, cut=False)
    return _fit(f'"{printable(text)}"', columns, len(data) > len(cut))


def _decoded(data: bytes, *, whole: bool) -> str | None:
    for trim in (0,) if whole else (0, 1, 2, 3):
        # A cut may have split the last character.
        try:
            return data[: len(data) - trim].decode()
        except UnicodeDecodeError:
            continue
    return None


def _fit(text: str, columns: int | None, cut: bool) -> str:
    if columns is None or (len(text) <= columns and not cut):
        return text
    return text[: max(1, columns - 1)] + ELLIPSIS


def bytes_json(name: str, data: bytes | None, shown: Shown) -> dict[str, object]:
    """Returns `{name: text}`, `{name_base64: ...}` for data that is not UTF-8, or `{name: null}`.

    As hex the value is always a string under `name`. As JSON it is the parsed value if it parses.
    """
    if data is None:
        return {name: None}
    if shown is Shown.HEX:
        return {name: data.hex()}
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
    if shown is Shown.JSON:
        value = _parsed(text)
        if value is not _NOT_JSON:
            return {name: value}
    return {name: text}


def _parsed(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not valid JSON")


def parse_settings(given: Iterable[str], option: str) -> dict[str, str]:
    """Parses `key=value` pairs. Raises `CommandFailed` with the first that is not one."""
    settings: dict[str, str] = {}
    for item in given:
        key, separator, value = item.partition("=")
        if not separator or not key.strip():
            raise CommandFailed(f"{option} {item}: write it as KEY=VALUE")
        settings[key.strip()] = value.strip()
    return settings


@contextmanager
def pipe_guard() -> Iterator[None]:
    """Lets a closed pipe end the program through `main`.

    Raises `PipeClosed` instead of `BrokenPipeError`, which libraries in between would catch.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise PipeClosed from error
