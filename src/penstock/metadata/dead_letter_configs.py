"""Settings for the dead letters of share groups, under the names of KIP-1191.

A record is given up after a rejection, for example, and brokers may write to every topic. So the
administrators of the brokers and of the topic say which topics may have dead letters: the name
begins with a prefix, and the topic has `errors.deadletterqueue.group.enable`.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.metadata.config_types import ConfigType, Definition, Value
from penstock.metadata.model import INTERNAL_TOPICS

DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
DEAD_LETTER_COPY: Final = "errors.deadletterqueue.copy.record.enable"
DEAD_LETTER_ENABLE: Final = "errors.deadletterqueue.group.enable"
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def _topic_name(value: Value) -> str | None:
    if value == "":
        return None
    if value in INTERNAL_TOPICS:
        return "it is an internal topic, which cannot have dead letters"
    if not isinstance(value, str) or not _NAME.fullmatch(value) or value in (".", ".."):
        return "it is not a valid topic name: use up to 249 of the characters a-z A-Z 0-9 . _ -"
    return None


DEAD_LETTER_BROKER_CONFIGS: Final = (
    Definition(
        "errors.deadletterqueue.topic.name.prefix",
        ConfigType.STRING,
        "dlq.",
        "How the names of topics with dead letters of share groups must begin.",
    ),
    Definition(
        "errors.deadletterqueue.auto.create.topics.enable",
        ConfigType.BOOLEAN,
        False,
        "Whether brokers create the topic for the dead letters of a share group if it does not "
        "exist, with the default numbers of partitions and replicas.",
    ),
)

DEAD_LETTER_GROUP_CONFIGS: Final = (
    Definition(
        DEAD_LETTER_TOPIC,
        ConfigType.STRING,
        "",
        "The topic for dead letters of a share group: records that were rejected, or delivered too "
        "often. Empty: they are dropped. The topic needs errors.deadletterqueue.group.enable, and "
        "a name with the prefix that errors.deadletterqueue.topic.name.prefix demands.",
        _topic_name,
    ),
    Definition(
        DEAD_LETTER_COPY,
        ConfigType.BOOLEAN,
        False,
        "Whether a dead letter of a share group has the key, the value and the headers of its "
        "record. Without it, a dead letter only says which record it was.",
    ),
)

DEAD_LETTER_TOPIC_CONFIGS: Final = (
    Definition(
        DEAD_LETTER_ENABLE,
        ConfigType.BOOLEAN,
        False,
        "Whether share groups may use the topic for their dead letters.",
    ),
)
