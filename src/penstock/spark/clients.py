"""Opens the clients of a source or sink: an admin for a driver, a consumer for a worker process.

A worker process runs many tasks one after another, so its consumer is kept, and a task needs no new
connection. The consumer ends with the worker process.

Spark starts a Python process for each step of a query, and each needs one kind of client. So a
client is imported when the first of its kind is opened.

A job that reads must never create the topic that it reads: a deleted topic stays deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.client.errors import ClientError, ConnectFailed
from penstock.client.options import ConsumerOptions, ProducerOptions
from penstock.spark.client_options import admin_keywords, check_client, keywords
from penstock.spark.options import SinkOptions, SourceOptions

if TYPE_CHECKING:
    from penstock.client.blocking.admin import Admin
    from penstock.client.blocking.consumer import Consumer
    from penstock.client.blocking.producer import Producer

CONSUMERS_KEPT: Final = 4
"""A worker may run for days and serve many jobs, and each consumer has a thread and connections."""
_consumers: dict[tuple[object, ...], Consumer[Any, Any]] = {}


class NoBroker(ClientError):
    """No broker answers at any of the job's bootstrap addresses."""


def open_admin(options: SourceOptions | SinkOptions) -> Admin:
    """Returns a connected admin. Raises `NoBroker` if no broker answers."""
    from penstock.client.blocking.admin import Admin  # noqa: PLC0415 -- see the docstring

    check_client(options)
    admin = Admin(options.bootstrap_servers, **admin_keywords(options))
    try:
        admin.start()
    except ConnectFailed as error:
        raise no_broker(options, error) from None
    return admin


def no_broker(options: SourceOptions | SinkOptions, error: ConnectFailed) -> NoBroker:
    return NoBroker(
        f"cannot connect to kafka.bootstrap.servers={options.bootstrap_servers}: {error.reason}. "
        "Correct the address, or start a broker there (`penstock up`)"
    )


def open_consumer(options: SourceOptions) -> Consumer[Any, Any]:
    from penstock.client.blocking.consumer import Consumer  # noqa: PLC0415 -- see the docstring

    given = keywords(options.client, ConsumerOptions)
    return Consumer(options.bootstrap_servers, **{**given, "allow_auto_create_topics": False})


def worker_consumer(options: SourceOptions) -> Consumer[Any, Any]:
    """Returns this process's consumer for these options."""
    key = (options.bootstrap_servers, *sorted(options.client.items()))
    consumer = _consumers.pop(key, None)
    if consumer is None:
        consumer = open_consumer(options)
    _consumers[key] = consumer  # At the end: the first one is the least recently used.
    if len(_consumers) > CONSUMERS_KEPT:
        _consumers.pop(next(iter(_consumers))).close()
    return consumer


def open_producer(options: SinkOptions, transactional_id: str | None = None) -> Producer[Any, Any]:
    from penstock.client.blocking.producer import Producer  # noqa: PLC0415 -- see the docstring

    given = keywords(options.client, ProducerOptions)
    if transactional_id is not None:
        given["transactional_id"] = transactional_id
        given["transaction_timeout_ms"] = options.transaction_timeout_ms
    return Producer(options.bootstrap_servers, **given)
