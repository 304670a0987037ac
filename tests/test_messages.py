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
        ("text", "not a log line"),
        ("help", "Start a broker."),
    ]


def listed(snippet: str) -> list[tuple[str, str]]:
    return [(found.kind, found.text) for found in sorted(messages_in("a.py", snippet))]


def test_log_lines_with_a_level_that_is_chosen_at_run_time() -> None:
    assert listed('_log.log(logging.WARNING if lost else logging.INFO, "%s: truncated", name)') == [
        ("log", "%s: truncated")
    ]


def test_loggers_of_any_name() -> None:
    assert listed(
        '_audit = logging.getLogger("penstock.audit")\n'
        '_audit.info("user %r signed in", user)\n'
        'other.info("no logger")'
    ) == [("log", "user %r signed in"), ("text", "no logger")]


def test_help_that_is_given_by_name() -> None:
    """Also if another module gives it: a name that ends in HELP."""
    snippet = '''
_COPY = """Copy the
metadata."""
DELETE_HELP = """Delete offsets.

\\b
Examples:
  penstock queue delete-offsets jobs
"""
app.command("copy", help=_COPY)(copy)
'''
    assert listed(snippet) == [
        ("help", "Copy the metadata."),
        ("help", "Delete offsets. Examples: penstock queue delete-offsets jobs"),
    ]


def test_a_docstring_is_help_only_of_a_command_without_other_help() -> None:
    snippet = '''
@app.command(help="Copy it.")
def copy() -> None:
    """How it is copied."""

@app.callback()
def group() -> None:
    """Keeps the name of the only command."""
'''
    assert listed(snippet) == [("help", "Copy it.")]


def test_texts_that_are_made_before_they_are_raised() -> None:
    snippet = """
def check(name):
    message = f"{name} is full"
    message += ": delete it"
    raise StorageError(message)

def reason(error):
    return f"cannot read {error}"

HINTS = {"debug": "use logging instead", "mode": ("never a string of one word", "word")}
"""
    assert listed(snippet) == [
        ("error", "{...} is full"),
        ("error", ": delete it"),
        ("text", "cannot read {...}"),
        ("text", "never a string of one word"),
        ("text", "use logging instead"),
    ]


def test_what_commands_print_and_ask() -> None:
    snippet = """
emit(f"deleted {name}")
_say("waiting")
sys.stderr.write("error: " + text)
file.write("not printed")
confirm(f"Delete {name}?", yes=yes)
Finding("disk", State.PROBLEM, f"{path} is full", "delete old files")
"""
    assert listed(snippet) == [
        ("printed", "deleted {...}"),
        ("printed", "waiting"),
        ("printed", "error: {...}"),
        ("text", "not printed"),
        ("printed", "Delete {...}?"),
        ("printed", "delete old files"),
        ("printed", "disk"),
        ("printed", "{...} is full"),
    ]


def test_descriptions_of_options_settings_and_metrics() -> None:
    snippet = """
port: int = _key(9092, "The port to listen on.")
linger_ms: int = option(0, values.whole(0), "How long to wait.")
Definition("cleanup.policy", LIST, ("delete",), "What happens to old records.", no_effect="no log")
_counter("penstock_records_total", "Records written here.", "topic")
"""
    assert listed(snippet) == [
        ("about", "The port to listen on."),
        ("about", "How long to wait."),
        ("about", "What happens to old records."),
        ("about", "no log"),
        ("about", "Records written here."),
    ]


def test_strings_for_programs_are_left_out() -> None:
    snippet = '''
"""The docstring of a module."""
raise KeyError("some name")
assert found is not None, "it was checked"
database.execute("SELECT value FROM entries")
re.compile("at (.*) in line")
is_idle = state == "NOT RUNNING"
names = "alpha beta gamma".split()
SCHEMA = "OffsetKey versions 0-1 flexible never"
'''
    assert listed(snippet) == []


def test_a_text_inside_another_is_found() -> None:
    assert listed("""emit(f"found {name}: {'it is new' if new else known}")""") == [
        ("printed", "found {...}: {...}"),
        ("text", "it is new"),
    ]


def test_texts_of_the_product_that_were_once_missing() -> None:
    texts = {(found.kind, found.text) for found in all_messages()}
    for kind, part in (
        ("log", "truncated the log from %d to %d"),
        ("log", "user %r signed in from %s"),
        ("help", "Store how to connect to a cluster."),
        ("text", "use logging.getLogger('penstock')"),
        ("printed", "see its log"),
        ("about", "The port to listen on; 0 picks a free one."),
        ("about", "Always 1; the labels name the broker."),
    ):
        assert any(found == kind and part in text for found, text in texts), part


def test_the_product_has_messages_of_every_kind() -> None:
    found = all_messages()
    assert {message.kind for message in found} == set(messages.KINDS)
    assert len(found) > 500


def test_the_list_can_be_limited(capsys: pytest.CaptureFixture[str]) -> None:
    assert messages.main(["--kind", "log", "net"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith("src/penstock/net/") and ": log: " in line for line in lines)
