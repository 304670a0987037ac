"""Plays the scripts in `tests/scripts/coordination`, with the toy shard.

A line at the margin is an event. The indented lines below it are its effects, or the error that it
raises. The text above the first empty line says what the script shows.

    A stores x=1 y=2           in one append; A is answered when it is committed
    A stores x=1 y=2 apart     the same, in as many batches as the size limit requires
    A reads x                  answered at once, from memory
    x expires at 5 s           sets a timer; when it fires, x is removed
    x is kept                  cancels that timer
    timer x fires at 5 s
    append 0 is committed      what the log reports; also: fails CODE, is late
    the shard is unloaded

A name with a value of 100 letters fills a batch: `x=*`.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.coordination.effects import Append, CancelTimer, Now, Reply, SetTimer, Token
from penstock.coordination.invariants import InvariantViolated
from penstock.wire.errors import ErrorCode

from .toy_shard import Effect, ToyShard

BATCH_BYTES_MAX = 250
LARGE = "*" * 100


class Asked(NamedTuple):
    """The token of a request."""

    client: str
    number: int


def show(effect: Effect) -> str:
    match effect:
        case Reply(Asked(client), answer):
            return f"reply to {client}: {answer.replace(LARGE, '*')}"
        case Append(append_id, records):
            return f"append {append_id}: " + " ".join(
                f"{key.decode()} removed"
                if value is None
                else f"{key.decode()}={value.decode().replace(LARGE, '*')}"
                for key, value in records
            )
        case SetTimer(key, at_ms):
            return f"timer {key} at {at_ms / 1000:g} s"
        case CancelTimer(key):
            return f"timer {key} cancelled"
    raise TypeError(effect)


class Player:
    def __init__(self) -> None:
        self.shard = ToyShard(BATCH_BYTES_MAX)
        self.asked = 0
        self.waiting: set[Token] = set()
        self.seconds = 0

    def play(self, line: str) -> list[str]:
        try:
            effects = self._event(line.split())
        except InvariantViolated as error:
            return [f"error: {error}"]
        for effect in effects:
            if isinstance(effect, Reply):
                self.waiting.remove(effect.token)  # Raises if it is answered twice.
        return [show(effect) for effect in effects]

    def _event(self, words: list[str]) -> list[Effect]:
        shard = self.shard
        match words:
            case [client, "stores", *values]:
                together = values[-1] != "apart"
                named = dict(each.split("=") for each in values if each != "apart")
                large = {name: value.replace("*", LARGE) for name, value in named.items()}
                return shard.store(large, self._ask(client), self._now(), together=together)
            case [client, "reads", name]:
                return shard.read(name, self._ask(client))
            case [name, "expires", "at", seconds, "s"]:
                return shard.expire(name, int(seconds) * 1000)
            case [name, "is", "kept"]:
                return shard.keep(name)
            case ["timer", name, "fires", "at", seconds, "s"]:
                self.seconds = int(seconds)
                return shard.on_timer(name, self._now())
            case ["append", number, "is", "committed"]:
                return shard.on_committed(int(number), self._now())
            case ["append", number, "fails", code]:
                return shard.on_append_failed(int(number), ErrorCode[code], self._now())
            case ["append", number, "is", "late"]:
                return shard.on_append_late(int(number))
            case ["the", "shard", "is", "unloaded"]:
                return shard.unload(ErrorCode.NOT_COORDINATOR)
        raise ValueError(f"unknown event {' '.join(words)!r}")

    def _ask(self, client: str) -> Token:
        self.asked += 1
        token = Asked(client, self.asked)
        self.waiting.add(token)
        return token

    def _now(self) -> Now:
        return Now(self.seconds * 1000, 1_700_000_000_000 + self.seconds * 1000)


def perform(script: str) -> str:
    """Returns the script with the effects that its events really have."""
    head, _, body = script.partition("\n\n")
    player = Player()
    lines = [head, ""]
    for line in body.splitlines():
        if not line.startswith("    "):
            lines.append(line)
            lines += [f"    {effect}" for effect in player.play(line)]
    return "\n".join(lines) + "\n"
