"""Runs procedures on a bucket in memory, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import TypeVar

from penstock.tier.errors import StoreError
from penstock.tier.requests import BackOff, Create, Procedure, Request, Together

from .simulated_bucket import SimulatedBucket

T = TypeVar("T")
Answer = Callable[[Request], object]


def drawer() -> Callable[[int], bytes]:
    """Returns a source of bytes that are all different."""
    numbers: Iterator[int] = count(1)
    return lambda size: next(numbers).to_bytes(size, "big")


class Runner:
    """A bucket, and a list of what was asked of it."""

    def __init__(self, bucket: SimulatedBucket | None = None) -> None:
        self.bucket = bucket or SimulatedBucket()
        self.draw = drawer()
        self.asked: list[Request] = []

    def run(self, procedure: Procedure[T], answer: Answer | None = None) -> T:
        """`answer` carries out requests instead of the bucket."""
        result: object = None
        error: StoreError | None = None
        while True:
            try:
                request = procedure.throw(error) if error else procedure.send(result)
            except StopIteration as end:
                value: T = end.value
                return value
            self.asked.append(request)
            result, error = None, None
            try:
                result = (answer or self.answer)(request)
            except StoreError as failure:
                error = failure

    def answer(self, request: Request) -> object:
        if isinstance(request, BackOff):
            return None
        if isinstance(request, Together):
            return [self._outcome(each) for each in request.requests]
        return self.bucket.apply(request)

    def _outcome(self, request: Request) -> object:
        try:
            return self.answer(request)
        except StoreError as error:
            return error

    def created(self) -> list[str]:
        """The names of all creates, in their order."""
        return [each.key for each in self.asked if isinstance(each, Create)]
