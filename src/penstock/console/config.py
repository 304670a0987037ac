"""The configuration of a console, checked once."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

DEFAULT_PORT: Final = 8090
TOKEN_LENGTH_MIN: Final = 16


class BadConsoleConfig(ValueError):
    """The message says what is wrong and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    bootstrap: str
    host: str = "127.0.0.1"
    token: str = ""
    """The token that browsers must send. May be empty (no token) on loopback only."""
    read_only: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """Host names that browsers may use, in addition to those of loopback and `host`."""
    look_interval_s: float = 1.0
    """The time between two polls of the brokers."""
    survey_interval_s: float = 2.0
    """The time between two surveys of all topics, groups and disks; longer if a survey is slow."""

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
