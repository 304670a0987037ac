"""Requests about thousands of things, answered in slices so that other requests get their turn.

A handler whose work grows with its request is written as steps: a generator that yields after each
piece of work and returns the response. A small request is worked off at once, as before. A large
one becomes a task that lets the event loop go on after every few milliseconds; requests of one
connection keep their order, as the next one begins when this one is answered. What a step reads may
change between two slices: each element of the answer is true at some time between the request and
the answer, and no more is promised.

Large frames are decoded on a thread, and so are the answers of large requests encoded.
`ports.Slicing` says what is large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from copy import copy
from typing import Any, Final, Protocol, TypeVar

from penstock.broker.context import RequestContext
from penstock.broker.watch.turns import Turns
from penstock.ports import Slicing
from penstock.wire.messages.base import Struct

R = TypeVar("R")
T = TypeVar("T")
Steps = Generator[None, None, R]

_ELEMENTS: Final = Slicing().elements
_FREED_AT_ONCE: Final = 100


def answered(context: RequestContext, steps: Steps[R], count: int) -> R | asyncio.Future[R]:
    """The result of these steps: now, or later if there are more than a few elements."""
    if count <= context.slicing.elements:
        return at_once(steps)
    context.is_large = True
    return context.spawn(in_slices(steps, context.turns()))


def at_once(steps: Steps[R]) -> R:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: R = done.value
            return result


async def in_slices(steps: Steps[R], turns: Turns) -> R:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: R = done.value
            return result
        await turns.give()


async def one_by_one(work: Callable[[T], R], elements: Iterable[T], turns: Turns) -> list[R]:
    """The results of some work for each element, with other requests' turns in between."""
    results = []
    for element in elements:
        results.append(work(element))
        await turns.give()
    return results


async def free(message: Struct, turns: Turns) -> None:
    """Take a message apart that nobody needs any longer: to free all of a large one at once takes
    many milliseconds, which no other thread can use either. Lists of numbers and texts are left
    alone. They are small, and may belong to somebody else."""
    for name in _lists_of(message):
        elements = getattr(message, name)
        nested = _lists_of(elements[0])
        while elements:
            for element in elements[-_FREED_AT_ONCE:] if nested else ():
                if any(len(getattr(element, each) or ()) > _ELEMENTS for each in nested):
                    await free(element, turns)
            del elements[-_FREED_AT_ONCE:]
            await turns.give()


def _lists_of(message: Struct) -> list[str]:
    """The fields that hold a list of messages. An empty one does not count."""
    return [
        name
        for name in message.__slots__
        if isinstance(held := getattr(message, name), list) and held and isinstance(held[0], Struct)
    ]


class Listed(Protocol):
    """A topic of a request or of its answer: some partitions under one name."""

    partitions: list[Any]


Asked = TypeVar("Asked", bound=Listed)
Told = TypeVar("Told", bound=Listed)


async def ask_in_portions(
    topics: Iterable[Asked],
    ask: Callable[[list[Asked]], Awaitable[list[Told] | None]],
    slicing: Slicing,
) -> list[Told] | None:
    """Ask about the partitions of some topics in portions; the answers, topic by topic.

    `ask` gets the topics with a portion of their partitions and answers each of them, in order. If
    it returns None, nobody is asked any further. Each partition's outcome is its own: one that
    fails undoes none of those before it.
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
    """Topics with at most `size` partitions together. A topic of more is in several portions: True
    with those that begin with the rest of the topic before."""
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
    """The elements in lists of at most `size`."""
    held = list(elements)
    return [held[start : start + size] for start in range(0, len(held), size)]
