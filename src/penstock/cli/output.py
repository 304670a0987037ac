"""What all commands share about talking to people and to programs.

People get text that fits their terminal; programs get JSON on stdout and nothing else there.
Whatever comes out of a log is somebody's bytes: it is never printed raw, since a terminal obeys
control characters.
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
    """The command cannot go on; the message is the one line its user sees."""

    def __init__(self, message: str, code: int = EXIT_UNUSABLE) -> None:
        super().__init__(message)
        self.code = code


class PipeClosed(Exception):
    """Whoever read the output went away."""


class Shown(StrEnum):
    """How the bytes of a key or a value are shown."""

    TEXT = "text"
    HEX = "hex"
    JSON = "json"


def emit(text: str) -> None:
    sys.stdout.write(text + "\n")


def json_text(value: object) -> str:
    """One line, for programs."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def emit_json(value: object) -> None:
    emit(json_text(value))


def width() -> int:
    """Columns to fill: the terminal's, COLUMNS, or 80."""
    return shutil.get_terminal_size().columns


def explain(error: OSError) -> str:
    """A failed system call in words that say what to do."""
    path = error.filename or "a file"
    match error:
        case FileNotFoundError():
            return f"{path} does not exist: check the path"
        case PermissionError():
            return f"{path} may not be read: run this as the user that runs the broker"
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
    """UTC to the millisecond; what is no time on a calendar stays a number."""
    if timestamp_ms < 0:
        return "no time"
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def printable(text: str) -> str:
    """The text with everything a terminal might obey written as an escape."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def bytes_text(data: bytes | None, shown: Shown, columns: int | None = None) -> str:
    """Bytes for people, in at most `columns`; binary shows as hex whatever was asked for."""
    if data is None:
        return "null"
    # Decoding what will not be shown would make a listing of large values slow.
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
    """`{name: text}`, or `{name_base64: ...}` for what is no UTF-8; `{name: null}` for null.

    As hex it is always a string under `name`; as JSON it is the parsed value where it parses.
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
    raise ValueError(f"{name} is not JSON, though Python reads it")


def parse_settings(given: Iterable[str], option: str) -> dict[str, str]:
    """`key=value` pairs; `CommandFailed` names the one that is none."""
    settings: dict[str, str] = {}
    for item in given:
        key, separator, value = item.partition("=")
        if not separator or not key.strip():
            raise CommandFailed(f"{option} {item}: write it as KEY=VALUE")
        settings[key.strip()] = value.strip()
    return settings


@contextmanager
def pipe_guard() -> Iterator[None]:
    """Let a closed pipe end the program through `main`, past libraries that would take it."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise PipeClosed from error
