"""Reads operations, resources and grants that people write as arguments of a command."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from penstock.cli.output import CommandFailed
from penstock.security import access_text

P = ParamSpec("P")
T = TypeVar("T")


def _checked(read: Callable[P, T]) -> Callable[P, T]:
    @wraps(read)
    def checked(*given: P.args, **keywords: P.kwargs) -> T:
        try:
            return read(*given, **keywords)
        except access_text.BadAccessText as error:
            raise CommandFailed(str(error)) from error

    return checked


named = _checked(access_text.named)
parse_assignment = _checked(access_text.parse_assignment)
parse_grant = _checked(access_text.parse_grant)
parse_resource = _checked(access_text.parse_resource)
