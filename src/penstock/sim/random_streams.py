"""Seeded randomness: one stream per purpose, and the `Random` port of a node.

Streams are identified by name, so that a new draw in one part does not shift those of another: a
change to the workload does not change the network delays.
"""

from __future__ import annotations

from random import Random  # noqa: TID251 - a simulation is where randomness is made


class RandomStreams:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[str, Random] = {}

    def stream(self, name: str) -> Random:
        """Returns the stream with that name, always the same one."""
        found = self._streams.get(name)
        if found is None:
            # Seeded with a string, which Python hashes with SHA-512: the same in every process.
            found = self._streams[name] = Random(f"{self._seed}/{name}")  # noqa: S311 - no secrets
        return found


class SimRandom:
    """The `Random` port."""

    def __init__(self, draws: Random) -> None:
        self._draws = draws

    def bytes(self, size: int) -> bytes:
        return self._draws.randbytes(size)

    def below(self, bound: int) -> int:
        return self._draws.randrange(bound)

    def uniform(self) -> float:
        return self._draws.random()
