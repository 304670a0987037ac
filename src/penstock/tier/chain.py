"""Finds the newest manifest of a chain, and its boundary. Pure.

Manifests are numbered without gaps from the boundary on, and so are boundaries from 1 on. A search
doubles its steps until a number is missing, and then halves them. It needs no listing, so a late
one does no harm.

While a search runs, the collector may delete manifests, and a stalled writer may create a deleted
one again. So the boundary is read again at the end. If it is not above the manifest that was found,
no manifest from there on was deleted before that. Then the one that was found was created only
once, and the one after it did not exist when the search looked for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.tier.errors import CorruptObject, NotFound
from penstock.tier.keys import boundary_key, manifest_key
from penstock.tier.manifest import Manifest, empty_manifest
from penstock.tier.manifest_format import decode_boundary, decode_manifest
from penstock.tier.requests import Procedure, head, read

_ATTEMPTS_MAX: Final = 20


class Boundary(NamedTuple):
    """Manifests below `floor` do not count."""

    number: int
    floor: int


NO_BOUNDARY: Final = Boundary(0, 1)
"""All manifests count."""


@dataclass(frozen=True, slots=True)
class View:
    """What a process knows of a chain."""

    manifest: Manifest
    boundary: Boundary = NO_BOUNDARY

    @property
    def chain(self) -> str:
        return self.manifest.chain

    @property
    def seq(self) -> int:
        return self.manifest.seq


def find(chain: str, known: View | None = None) -> Procedure[View]:
    """Returns the newest manifest. `known` is an earlier view, to begin the search with."""
    boundary = yield from find_boundary(chain, known.boundary if known else NO_BOUNDARY)
    for _ in range(_ATTEMPTS_MAX):
        lowest = boundary.floor if boundary.number else 0
        if known is not None:
            lowest = max(lowest, known.seq)
        seq = yield from _last_number(lambda number: manifest_key(chain, number), lowest)
        manifest = yield from _read_manifest(chain, seq)
        newer = yield from find_boundary(chain, boundary)
        if manifest is not None and (newer.floor <= seq or not newer.number):
            return View(manifest, newer)
        if manifest is None and newer == boundary:
            raise CorruptObject(
                f"manifest {seq} of {chain} is missing, although it is not below the boundary "
                f"{boundary.floor}: something other than Penstock deleted it. Restore it, or "
                "rebuild the chain"
            )
        boundary = newer
    raise CorruptObject(
        f"the boundary of {chain} advances faster than its manifests can be read; try again"
    )


def last_manifest(chain: str, boundary: Boundary) -> Procedure[int]:
    """Returns the number of the last manifest, without reading it: it may be damaged."""
    lowest = boundary.floor if boundary.number else 0
    return (yield from _last_number(lambda number: manifest_key(chain, number), lowest))


def _read_manifest(chain: str, seq: int) -> Procedure[Manifest | None]:
    if not seq:
        return empty_manifest(chain)
    try:
        data = yield from read(manifest_key(chain, seq))
    except NotFound:
        return None
    return decode_manifest(data, chain, seq)


def find_boundary(chain: str, known: Boundary) -> Procedure[Boundary]:
    """Returns the newest boundary. Usually one request, which finds nothing new."""
    number = yield from _last_number(lambda number: boundary_key(chain, number), known.number)
    if number == known.number:
        return known
    data = yield from read(boundary_key(chain, number))
    return Boundary(number, decode_boundary(data, chain, number))


def _last_number(key_of: Callable[[int], str], known: int) -> Procedure[int]:
    """Returns the last number in use. `known` is in use, or 0."""
    last, step = known, 1
    while (yield from _exists(key_of(last + step))):
        last += step
        step *= 2
    missing = last + step
    while missing - last > 1:
        middle = (last + missing) // 2
        if (yield from _exists(key_of(middle))):
            last = middle
        else:
            missing = middle
    return last


def _exists(key: str) -> Procedure[bool]:
    try:
        yield from head(key)
    except NotFound:
        return False
    return True
