"""What must change in a value when it moves to another store.

A value may refer to the revision of the commit that wrote it (`config_values`), which only the
store knew. In another store the value has another revision, so the number is written into it.
"""

from __future__ import annotations

import json
from typing import Final

from penstock.metadata.config_values import OPTIONAL_CONFIG_FIELDS
from penstock.metadata.keys import BROKER_CONFIGS_PREFIX, TOPICS_PREFIX
from penstock.metadata.stored_fields import encode_fields

_PREFIXES: Final = (TOPICS_PREFIX, BROKER_CONFIGS_PREFIX)


def self_contained(key: str, value: bytes, revision: int) -> bytes:
    """Returns the value with the revision of its commit in the place of a reference to it."""
    if not key.startswith(_PREFIXES) or not any(
        name.encode() in value for name in OPTIONAL_CONFIG_FIELDS
    ):
        return value
    fields = json.loads(value)
    own = {name: revision for name in OPTIONAL_CONFIG_FIELDS if fields.get(name) == -1}
    if not own:
        return value
    version = fields.pop("v")
    return encode_fields({**fields, **own}, version)
