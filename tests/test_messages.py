"""`make messages` finds log lines, errors and help texts."""

from __future__ import annotations

import pytest

import messages
from messages import all_messages, messages_in

SNIPPET = '''
_log.warning("%s is full", name)
self._logger.error(f"{broker} left " + "the cluster")
raise StorageError(f"{path} is damaged: restore it")
raise KeyError("name")
raise KafkaError(ErrorCode.INVALID_CONFIG, "too small" if small else "too large")
port: Annotated[int, typer.Option(help="The port to listen on.")] = 9092
shapes.debug("not a log line")

@app.command()
def up() -> None:
    """Start
    a broker."""
'''


def test_log_lines_errors_and_help_texts_are_found() -> None:
    assert [(found.kind, found.text) for found in sorted(messages_in("a.py", SNIPPET))] == [
        ("log", "%s is full"),
        ("log", "{...} left the cluster"),
        ("error", "{...} is damaged: restore it"),
        ("error", "too small | too large"),
        ("help", "The port to listen on."),
        ("help", "Start a broker."),
    ]


def test_the_product_has_messages_of_every_kind() -> None:
    found = all_messages()
    assert {message.kind for message in found} == set(messages.KINDS)
    assert len(found) > 500


def test_the_list_can_be_limited(capsys: pytest.CaptureFixture[str]) -> None:
    assert messages.main(["--kind", "log", "net"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith("src/penstock/net/") and ": log: " in line for line in lines)
