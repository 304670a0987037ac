"""Runs the example of every public name, against one broker.

This is what an example finds:

    localhost:9092   a broker, in place of the address in the text
    localhost:8080   a server that does not speak Kafka's protocol
    orders           a topic with one partition and three records: the values tea, milk and rice,
                     with the keys ann, bob and ann
    payments         a topic with three partitions, without records
    producer         a producer, started
    consumer         a consumer of orders in the group billing, which starts at the first record
    admin            an admin client, started

and the names of `penstock`, its public modules, `asyncio`, `sqlite3` and `threading`. In the
examples of `penstock.aio` the three clients are those for asyncio, and an example may use `await`.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import inspect
import io
import re
import socket
import sqlite3
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import penstock
from penstock import Admin, Consumer, NewTopic, Producer, aio
from penstock.testing import Broker
from penstock.testing.slowness import patient
from public_examples import Example, all_examples, examples_in, patiently, public_names

EXAMPLES = all_examples()
IN_QUEUES = "Queue("
"""Our broker does not advertise share groups yet: `tests/compat/test_queue_examples.py` runs these
on Apache Kafka."""
IN_SPARK = "penstock.spark."
"""These need a Spark session: `tests/spark/test_watching.py` runs them."""
RECORDS = ((b"ann", b"tea"), (b"bob", b"milk"), (b"ann", b"rice"))
MUST_SHOW = {
    "Producer": {"flush", "send", "send_nowait", "send_table", "transaction"},
    "Consumer": {"commit", "poll", "read_table", "run", "seek"},
    "Queue": {"put", "run", "take"},
    "Admin": {"alter_configs", "create_topic", "delete_records", "group_offsets", "list_offsets"},
}
"""The methods that most users need. Each has an example of its own."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"num.partitions": "1"}) as running:
        yield running


@pytest.fixture(scope="module")
def other_server() -> Iterator[str]:
    """A server that answers every connection in HTTP."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1024)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(patient(10))


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(broker.bootstrap) as client:
        yield client


def prepare(code: str, admin: Admin, bootstrap: str) -> None:
    """Creates the topics that an example mentions."""
    admin.delete_topics([topic.name for topic in admin.list_topics()])
    admin.delete_groups([group.group for group in admin.list_groups()])
    if '"payments"' in code:
        admin.create_topic("payments", 3)
    if '"orders"' in code or re.search(r"\bconsumer\b", code):
        admin.create_topic("orders", 1)
        with Producer(bootstrap) as producer:
            for key, value in RECORDS:
                producer.send("orders", value, key=key)


def make_module(name: str) -> ModuleType:
    module = ModuleType(name)
    names = vars(module)
    names.update({each: getattr(penstock, each) for each in penstock.__all__})
    names.update(asyncio=asyncio, sqlite3=sqlite3, threading=threading)
    for room in (
        *("aio", "encryption", "errors", "interceptors", "routers", "serializers"),
        *("testing", "tracing"),
    ):
        names[room] = importlib.import_module(f"penstock.{room}")
    return module


def clients(code: str, bootstrap: str, kinds: Any) -> dict[str, Any]:
    """Makes the clients that an example mentions without making them."""

    def uses(name: str) -> bool:
        makes = rf"\b(as {name}\b|{name} = )"
        return bool(re.search(rf"\b{name}\b", code)) and not re.search(makes, code)

    made: dict[str, Any] = {}
    if uses("producer"):
        # A record that must not be acknowledged yet is not even sent on a machine that pauses here.
        late = {"linger_ms": 60_000} if "flush(timeout_s=0)" in code else {}
        made["producer"] = kinds.Producer(bootstrap, **late)
    if uses("consumer"):
        made["consumer"] = kinds.Consumer(
            bootstrap, topics=["orders"], group_id="billing", auto_offset_reset="earliest"
        )
    if uses("admin"):
        made["admin"] = kinds.Admin(bootstrap)
    return made


async def run_async(code: Any, names: dict[str, Any], made: dict[str, Any]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for name, client in made.items():
            names[name] = await stack.enter_async_context(client)
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result


def run(example: Example, bootstrap: str, other: str) -> list[str]:
    """Runs an example and returns the lines that it printed."""
    text = patiently(example.code)
    text = text.replace("localhost:9092", bootstrap).replace("localhost:8080", other)
    module = make_module("example")
    names = vars(module)
    code = compile(text, example.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    is_async = example.name.startswith("penstock.aio.") or code.co_flags & inspect.CO_COROUTINE
    made = clients(example.code, bootstrap, aio if is_async else penstock)
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        # Dataclasses look up the names in their annotations in the module they come from.
        patch.setitem(sys.modules, "example", module)
        if is_async:
            asyncio.run(run_async(code, names, made))
        else:
            with contextlib.ExitStack() as stack:
                for name, client in made.items():
                    names[name] = stack.enter_context(client)
                exec(code, names)
    return printed.getvalue().splitlines()


@pytest.mark.parametrize(
    "example",
    [
        each
        for each in EXAMPLES
        if not each.name.startswith(IN_SPARK) and IN_QUEUES not in each.code
    ],
    ids=lambda example: example.name.removeprefix("penstock."),
)
def test_the_example_runs(
    example: Example, broker: Broker, admin: Admin, other_server: str
) -> None:
    """It raises nothing, and prints what it says."""
    prepare(example.code, admin, broker.bootstrap)
    assert run(example, broker.bootstrap, other_server) == example.prints


def test_every_public_name_has_an_example() -> None:
    """Each class, function and object that a public module lists."""
    missing = [each.name for each in public_names() if not each.is_member and not each.examples]
    assert missing == []


def test_the_main_methods_have_examples() -> None:
    shown = {each.name for each in public_names() if each.examples}
    for client, methods in MUST_SHOW.items():
        for method in methods:
            assert f"penstock.{client}.{method}" in shown
            assert f"penstock.aio.{client}.{method}" in shown


def test_no_example_is_empty() -> None:
    """An `Example:` without an indented block below it would run and show nothing."""
    assert [each.name for each in EXAMPLES if not each.code.strip()] == []


def test_examples_are_found_in_a_docstring() -> None:
    doc = "Text.\n\nExample:\n    a = 1\n\n    print(a)\n    #> 1\n\nMore.\n\nExample:\n    b()\n"
    assert examples_in(doc) == ["a = 1\n\nprint(a)\n#> 1", "b()"]
    assert Example("x", examples_in(doc)[0]).prints == ["1"]
    assert examples_in("Example:\nno block") == [""]


@pytest.mark.parametrize(
    ("code", "printed"), [("print('tea')\n#> tea", ["tea"]), ("print('tea')\n#> milk", ["tea"])]
)
def test_what_an_example_prints_is_returned(code: str, printed: list[str]) -> None:
    """An example that prints something else than it says is found."""
    example = Example("penstock.x", code)
    assert run(example, "", "") == printed
    assert (example.prints == printed) == ("milk" not in code)


def test_an_example_that_raises_is_found() -> None:
    with pytest.raises(ZeroDivisionError):
        run(Example("penstock.x", "1 / 0"), "", "")
    with pytest.raises(ZeroDivisionError):
        run(Example("penstock.aio.x", "await asyncio.sleep(0)\n1 / 0"), "", "")


def test_a_new_topic_is_prepared_for_each_example(broker: Broker, admin: Admin) -> None:
    """So an example does not depend on those that ran before it."""
    for _ in range(2):
        prepare('"orders"', admin, broker.bootstrap)
        with Consumer(broker.bootstrap, topics="orders", auto_offset_reset="earliest") as consumer:
            assert [each.value for each in consumer.poll(int(patient(10_000)))] == [
                value for _, value in RECORDS
            ]
        admin.create_topics([NewTopic("left-over")])
    prepare("", admin, broker.bootstrap)
    assert admin.list_topics() == []
