"""Settings of brokers for share sessions (KIP-932). They come from the config file."""

from __future__ import annotations

from typing import Final

from penstock.metadata.config_types import ConfigType, Definition, between

SHARE_SESSION_CONFIGS: Final = (
    Definition(
        "group.share.max.share.sessions",
        ConfigType.INT,
        2_000,
        "The maximum number of share sessions on a broker. Each member of a share group has one on "
        "every broker that it fetches from.",
        between(1, 100_000),
        dynamic=False,
    ),
)
