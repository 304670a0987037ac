"""The sync version of `Consumer.run`.

The async loop runs on the consumer's thread. The handler is called on the thread that waits, or on
a pool of threads if it may handle several records at the same time.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from penstock.client.blocking.caller_callbacks import SyncProducer, wrapped
from penstock.client.blocking.consumer_thread import ConsumerThread
from penstock.client.processing.contracts import Handler, RunSummary
from penstock.client.processing.run import run
from penstock.client.processing.run_options import RunOptions


def run_in_thread(
    thread: ConsumerThread,
    handler: Handler[Any, Any],
    options: RunOptions,
    producer: Any,
    stop: threading.Event | None,
) -> RunSummary:
    """Handles records until `stop` is set. `producer` is a sync producer or None."""
    on_caller = thread.on_caller
    if options.on_error is not None:
        options = replace(options, on_error=wrapped(on_caller, options.on_error))
    return thread.until(
        stop,
        lambda stopping: run(
            thread.core,
            handler,
            replace(options, stop=stopping),
            producer=None if producer is None else SyncProducer(producer),
            executor=on_caller if options.concurrency == 1 else None,
        ),
    )
