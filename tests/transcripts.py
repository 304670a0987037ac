"""What all players of scripts have in common.

A script begins with a text that says what it shows. Below it, a line at the margin is an event. The
indented lines below an event are what follows from it: together they are the transcript. Lines that
begin with # are remarks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

_INDENT = "    "


class Player(Protocol):
    def play(self, line: str) -> list[str]:
        """Plays an event. Returns what follows from it. Raises `AssertionError` if there is no such
        event."""
        ...


def scripts_in(folder: str) -> list[Path]:
    return sorted((Path(__file__).parent / "scripts" / folder).glob("*.txt"))


def perform(script: str, new_player: Callable[[], Player]) -> str:
    """Plays the events of a script. Returns it with what really follows from them."""
    head, _, body = script.partition("\n\n")
    player = new_player()
    lines = [head, ""]
    for line in body.split("\n"):
        if line.startswith(_INDENT):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [_INDENT + consequence for consequence in player.play(line)]
    return "\n".join(lines)


def check(path: Path, new_player: Callable[[], Player]) -> None:
    """Compares a script with what really follows, or writes that into it if the caller asked so."""
    expected = path.read_text("utf-8")
    actual = perform(expected, new_player)
    if os.environ.get("PENSTOCK_REWRITE") == "1":
        path.write_text(actual, "utf-8")
        return
    assert actual == expected


def matches(path: Path, new_player: Callable[[], Player]) -> bool:
    """Returns whether a script can be played, and nothing else follows from it than it says."""
    script = path.read_text("utf-8")
    try:
        return perform(script, new_player) == script
    except (AssertionError, LookupError):
        return False


def altered(script: str) -> Iterator[str]:
    """Yields the script with a consequence changed, left out, and repeated: the first of them, one
    in the middle, and the last."""
    lines = script.split("\n")
    found = [number for number, line in enumerate(lines) if line.startswith(_INDENT)]
    assert found, "the script has no consequences"
    for number in (found[0], found[len(found) // 2], found[-1]):
        before, line, after = lines[:number], lines[number], lines[number + 1 :]
        for changed in ([f"{line} indeed"], [], [line, line]):
            yield "\n".join([*before, *changed, *after])
