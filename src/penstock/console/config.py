"""How a console is set up; checked once."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

DEFAULT_PORT: Final = 8090
TOKEN_LENGTH_MIN: Final = 16


class BadConsoleConfig(ValueError):
    """Says what is wrong and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    bootstrap: str
    host: str = "127.0.0.1"
    token: str = ""
    """What a browser must show before it is told anything; empty: nothing, on loopback only."""
    read_only: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """Names, besides loopback's and `host`, under which browsers may call this console."""
    look_interval_s: float = 1.0
    """Between two looks at the brokers."""
    survey_interval_s: float = 2.0
    """Between two looks at all topics, groups and disks, or longer where that takes long."""

    def __post_init__(self) -> None:
        if not self.is_loopback and not self.token:
            raise BadConsoleConfig(
                f"{self.host} can be reached from other machines: give a token, or listen on "
                "127.0.0.1"
            )
        if self.token and len(self.token) < TOKEN_LENGTH_MIN:
            raise BadConsoleConfig(
                f"the token has {len(self.token)} characters: use {TOKEN_LENGTH_MIN} or more"
            )

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
