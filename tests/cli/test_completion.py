"""Tests shell completion as a shell runs it: a process for each Tab, input in the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from client.fake_broker import FakeBroker
from client.fake_model import Group
from penstock.testing.slowness import patient

PATIENT = """
from penstock.cli import completion, main
completion._PATIENCE_S = 60.0  # On a busy machine an answer takes longer than a second.
main.main()
"""
PROGRAM = (sys.executable, "-c", PATIENT)


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.model.add_topic("orders", 1)
        broker.model.add_topic("users", 1)
        yield broker


def complete(line: str, bootstrap: str) -> list[str]:
    """Returns what bash would offer at the end of the line."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "_PENSTOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "PENSTOCK_BOOTSTRAP": bootstrap,
    }
    ended = subprocess.run(
        PROGRAM, capture_output=True, text=True, env=environment, check=False, timeout=patient(60)
    )
    assert ended.stderr == ""
    return ended.stdout.split()


def test_topics_are_completed(fake: FakeBroker) -> None:
    """As arguments and as options; only those with the typed prefix."""
    assert complete("penstock topic describe ", fake.address) == ["orders", "users"]
    assert complete("penstock consume us", fake.address) == ["users"]
    assert complete("penstock cluster elect --topic or", fake.address) == ["orders"]


def test_an_unreachable_cluster_offers_nothing(fake: FakeBroker) -> None:
    """No error may appear in the middle of the user's command line."""
    assert complete("penstock topic describe ", "localhost:1") == []


def test_groups_are_completed(fake: FakeBroker) -> None:
    """For every command that takes a group."""
    fake.model.groups["billing"] = Group()
    assert complete("penstock group describe b", fake.address) == ["billing"]
