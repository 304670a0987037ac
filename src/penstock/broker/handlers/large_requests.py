"""Processes large requests in slices, so that other requests are served between the slices.

A handler whose work grows with its request is written as steps: a generator that yields after each
piece of work and returns the response. For a small request all steps run at once. A large one
becomes a task that gives control back to the event loop every few milliseconds. Requests of one
connection keep their order, because the next one begins when this one is answered. What the steps
read may change between two slices. Each element of the response is correct for some moment between
the request and the response, and no more is guaranteed.

Large frames are decoded on a thread, and the responses to large requests are encoded on a thread.
`ports.Slicing` defines what is large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from copy import copy
from typing import Any, Final, Protocol, TypeVar

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Slices, Steps, at_once, in_slices
from penstock.ports import Slicing
from penstock.wire.messages.base import Struct

R = TypeVar("R")
T = TypeVar("T")

_ELEMENTS: Final = Slicing().elements
_FREED_AT_ONCE: Final = 100


def answered(context: RequestContext, steps: Steps[R], count: int) -> R | asyncio.Future[R]:
    """Returns the result of the steps, or a future of it if there are many elements."""
    if count <= context.slicing.elements:
        return at_once(steps)
    context.is_large = True
    return context.spawn(in_slices(steps, context.slices()))


async def one_by_one(work: Callable[[T], R], elements: Iterable[T], slices: Slices) -> list[R]:
    """Returns the results of `work` for each element. Other requests are served in between."""
    results = []
    for element in elements:
        results.append(work(element))
        await slices.give_way()
    return results


async def free(message: Struct, slices: Slices) -> None:
    """Frees a message that is no longer needed, a part at a time.

    Freeing a large message at once takes many milliseconds, and no other thread can run meanwhile.
    Lists of numbers and strings are not emptied: they are small, and may be in use elsewhere."""
    for name in _lists_of(message):
        elements = getattr(message, name)
        nested = _lists_of(elements[0])
        while elements:
            for element in elements[-_FREED_AT_ONCE:] if nested else ():
                if any(len(getattr(element, each) or ()) > _ELEMENTS for each in nested):
                    await free(element, slices)
            del elements[-_FREED_AT_ONCE:]
            await slices.give_way()


def _lists_of(message: Struct) -> list[str]:
    """Returns the names of the fields that hold a non-empty list of messages."""
    return [
        name
        for name in message.__slots__
        if isinstance(held := getattr(message, name), list) and held and isinstance(held[0], Struct)
    ]


class Listed(Protocol):
    """A topic in a request or response: a name and some partitions."""

    partitions: list[Any]


Asked = TypeVar("Asked", bound=Listed)
Told = TypeVar("Told", bound=Listed)


async def ask_in_portions(
    topics: Iterable[Asked],
    ask: Callable[[list[Asked]], Awaitable[list[Told] | None]],
    slicing: Slicing,
) -> list[Told] | None:
    """Calls `ask` with the partitions of some topics in portions, and joins the answers by topic.

    `ask` gets topics with a portion of their partitions, and answers each of them in order. If it
    returns None, the result is None and it is not called again. Partitions are independent: a
    failure does not undo the portions before it.
    """
    answers: list[Told] = []
    for continues, portion in topic_portions(topics, max(1, slicing.elements)):
        told = await ask(portion)
        await asyncio.sleep(0)
        if told is None:
            return None
        if continues:
            answers[-1].partitions += told.pop(0).partitions
        answers += told
    return answers


def topic_portions(topics: Iterable[Asked], size: int) -> Iterator[tuple[bool, list[Asked]]]:
    """Splits topics into portions of at most `size` partitions.

    A large topic is split into several portions. The flag is True if a portion begins with more
    partitions of the previous portion's last topic."""
    continues, room = False, size
    portion: list[Asked] = []
    for topic in topics:
        left, is_rest = topic.partitions, False
        while True:
            part = copy(topic)
            part.partitions = left[:room]
            if not portion:
                continues = is_rest
            portion.append(part)
            left, room, is_rest = left[room:], room - len(part.partitions), True
            if room == 0 or len(portion) >= size:
                yield continues, portion
                continues, portion, room = False, [], size
            if not left:
                break
    if portion:
        yield continues, portion


def portions(elements: Iterable[T], size: int = _ELEMENTS) -> list[list[T]]:
    """Splits the elements into lists of at most `size`."""
    held = list(elements)
    return [held[start : start + size] for start in range(0, len(held), size)]
