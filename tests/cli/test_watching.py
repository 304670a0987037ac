"""Tests `--watch`: repeated queries, which continue while the cluster is unreachable."""

from __future__ import annotations

import asyncio
import json

import pytest

from penstock.cli import watching
from penstock.client.errors import ConnectFailed

GONE = ConnectFailed("here:1", "gone")


class Enough(Exception):
    """Ends the watch once the test has seen enough."""


class Clock:
    """Counts the sleeps instead of sleeping."""

    def __init__(self, rests: int) -> None:
        self._left = rests
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self._left:
            raise Enough


def looks(*answers: str | Exception) -> watching.Look[str]:
    left = list(answers)

    async def look() -> str:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return look


async def show(look: watching.Look[str], clock: Clock, *, as_json: bool = False) -> None:
    text = json.dumps if as_json else str
    await watching.shown(look, text, json=as_json, watch=True, interval_s=3.0, clock=clock)


def test_a_watch_continues_through_an_outage(capsys: pytest.CaptureFixture[str]) -> None:
    """An unreachable cluster is reported, and shown again once it is back."""
    clock = Clock(3)
    with pytest.raises(Enough):
        asyncio.run(show(looks("well", GONE, "well again"), clock))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "well"
    assert lines[1].startswith("penstock: cannot connect to here:1: gone")
    assert lines[2] == "well again"
    assert clock.slept == [3.0, 3.0, 3.0]


def test_json_output_has_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Including errors."""
    with pytest.raises(Enough):
        asyncio.run(show(looks("well", GONE), Clock(2), as_json=True))
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == "well"
    assert second["error"].startswith("cannot connect to here:1: gone")


def test_the_first_query_fails_as_without_watch() -> None:
    """A wrong address is reported at once."""
    with pytest.raises(ConnectFailed):
        asyncio.run(show(looks(GONE), Clock(1)))
