"""The entry point to `engine.py`: opens the dead-letter clients and closes them with the run."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import TypeVar

from penstock.client.processing.contracts import (
    DeadLetterProducer,
    Handler,
    RunConsumer,
    RunSummary,
)
from penstock.client.processing.dead_letters import DeadLetters
from penstock.client.processing.engine import Run
from penstock.client.processing.run_options import RunOptions

K = TypeVar("K")
V = TypeVar("V")


async def run(
    consumer: RunConsumer[K, V],
    handler: Handler[K, V],
    options: RunOptions,
    *,
    producer: DeadLetterProducer | None = None,
    executor: Executor | None = None,
) -> RunSummary:
    """Handles records until `options.stop` is set, the run is cancelled, or it fails.

    `producer` sends the dead letters, with the keys and values that the handler received. Without a
    producer they are sent as the bytes in which they were received. `executor` runs a handler that
    is a plain function.
    """
    letters = None
    if options.dead_letter_topic is not None:
        letters = DeadLetters(
            options.dead_letter_topic,
            consumer.options,
            consumer.env,
            deserializes=consumer.deserializes,
            producer=producer,
        )
    try:
        return await Run(consumer, handler, options, letters, executor).run()
    finally:
        if letters is not None:
            await letters.close()
