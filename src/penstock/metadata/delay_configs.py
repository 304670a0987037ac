"""The setting that makes a topic a delay topic.

Brokers copy the records of a delay topic to its target when they are due (`docs/QUEUES.md`).
"""

from __future__ import annotations

import re
from typing import Final

from penstock.metadata.config_types import ConfigType, Definition, Value
from penstock.metadata.model import INTERNAL_TOPICS

DELAY_TARGET: Final = "penstock.delay.target"
DELAY_GROUP: Final = "__penstock_delay"
"""The group under which brokers keep the state of delay topics. Clients cannot use it."""
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def _topic_name(value: Value) -> str | None:
    if value == "":
        return None
    if value in INTERNAL_TOPICS:
        return "it is an internal topic, to which only brokers write"
    if not isinstance(value, str) or not _NAME.fullmatch(value) or value in (".", ".."):
        return "it is not a valid topic name: use up to 249 of the characters a-z A-Z 0-9 . _ -"
    return None


DELAY_CONFIGS: Final = (
    Definition(
        DELAY_TARGET,
        ConfigType.STRING,
        "",
        "The topic to which brokers copy each record when it is due, as its header "
        "penstock-deliver-at says; a record without the header immediately. Empty: records are "
        "not copied.",
        _topic_name,
    ),
)
