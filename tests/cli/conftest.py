"""Fixtures: a fake broker that the commands use by default, and a runner for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from client.fake_broker import FakeBroker
from penstock.cli.app import run


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        monkeypatch.setenv("PENSTOCK_BOOTSTRAP", broker.address)
        monkeypatch.setenv("COLUMNS", "80")
        yield broker


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Runner:
    """`penstock("topic", "list")` runs the command in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str) -> Ended:
        self._capture.readouterr()
        code = run(list(arguments))
        written = self._capture.readouterr()
        assert "Traceback" not in written.err
        return Ended(code, written.out, written.err)


@pytest.fixture
def penstock(capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(capsys)
