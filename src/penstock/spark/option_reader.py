"""Reads options of a Spark source or sink one by one: texts, sizes, durations, choices. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Final, TypeVar

from penstock.client.errors import OptionError
from penstock.spark.profile_options import read_profile

C = TypeVar("C", bound=str)

_CLIENT: Final = "kafka."
_SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "outputmode", "queryname"})
"""Options that Spark itself adds to those of the user."""
_CLIENTS_OWN: Final = frozenset({"bootstrap.servers", "group.id", "isolation.level"})
"""Options of the client that users often give without the prefix `kafka.`."""
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionReader:
    """Reads options by their documented names, in any case.

    Args:
        given: what the user wrote, and what Spark added.
        known: the documented names.
        refused: options of Spark's Kafka source that have no meaning here, and what to use instead.
        hidden: further names in lower case, which no message mentions.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        known: tuple[str, ...],
        refused: Mapping[str, str],
        hidden: Collection[str] = (),
    ) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self.client: dict[str, str] = {}
        names = {name.lower(): name for name in known}
        for name, value in self._given.items():
            if name in refused:
                raise OptionError(f"{name} cannot be set: {refused[name]}")
            if name.startswith(_CLIENT):
                self.client[name.removeprefix(_CLIENT).replace(".", "_")] = value
            elif name not in names and name not in _SPARKS_OWN and name not in hidden:
                raise _unknown(name, names)

    def text(self, name: str) -> str:
        return self._given.get(name.lower(), "").strip()

    def bootstrap(self) -> str:
        found = self.client.pop("bootstrap_servers", "").strip()
        if profile := self.text("profile"):
            address, options = read_profile(profile)
            found = found or address
            self.client = {**options, **self.client}
        if not found:
            raise OptionError(
                "kafka.bootstrap.servers is missing: set it to the addresses of the brokers, "
                'for example .option("kafka.bootstrap.servers", "localhost:9092")'
            )
        return found

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise OptionError(f"{name} is {text}: write true or false")
        return text == "true" if text else default

    def pushdown(self) -> bool:
        if self.text("filterPushdown").lower() == "true":
            raise OptionError(
                "filterPushdown is true, but Spark would apply the filters of one query to the "
                "next on the same DataFrame: set it to once, and call load() again for every "
                "query; or limit the read with startingOffsets and endingOffsets"
            )
        return self.choice("filterPushdown", ("false", "once"), "false") == "once"

    def choice(self, name: str, choices: tuple[C, ...], default: C) -> C:
        text = self.text(name).lower() or default
        for choice in choices:
            if text == choice:
                return choice
        raise OptionError(f"{name} is {text}: use {' or '.join(choices)}")

    def count(self, name: str) -> int | None:
        text = self.text(name)
        if not text:
            return None
        if not text.isdecimal() or not int(text):
            raise OptionError(f"{name} is {text}: write a whole number above 0")
        return int(text)

    def size(self, name: str) -> int | None:
        text = self.text(name).lower()
        if not text:
            return None
        match = re.fullmatch(r"(\d+)\s*([kmgt]?)i?b?", text)
        if match is None or not int(match[1]):
            raise OptionError(f"{name} is {text}: write bytes, such as 67108864 or 64m")
        return int(match[1]) << " kmgt".index(match[2] or " ") * 10

    def duration_ms(self, name: str, default: int) -> int:
        text = self.text(name).lower()
        if not text:
            return default
        match = _DURATION.fullmatch(text)
        if match is None:
            raise OptionError(f"{name} is {text}: write a duration such as 500ms, 30s or 15m")
        return int(match[1]) * _UNIT_MS[match[2]]


def _unknown(name: str, names: Mapping[str, str]) -> OptionError:
    """Returns the error for an unknown option. The message shows its name in lower case, because
    Spark passes it in that way."""
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return OptionError(f"there is no option {name}: did you mean {names[near[0]]}?")
    if name in _CLIENTS_OWN:
        return OptionError(f"there is no option {name}: did you mean {_CLIENT}{name}?")
    return OptionError(
        f"there is no option {name}: leave it out. The options are {', '.join(names.values())}, "
        "and those of the client as kafka.*"
    )
