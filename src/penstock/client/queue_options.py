# ruff: noqa: RUF009 (`option` is `field` with a reader; nothing it returns is shared or changed)
"""The options of queues. See `options` for how options are defined."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, ClassVar, Final, Literal

from penstock.client import option_values as values
from penstock.client.connection import ConnectionConfig
from penstock.client.errors import OptionError
from penstock.client.option_keywords import ClientKeywords, CompressionName
from penstock.client.option_values import INT32_MAX
from penstock.client.options import ClientOptions, ProducerOptions
from penstock.client.security_options import option
from penstock.records.batch import Codec

PREFETCH_MAX: Final = 100_000
_MEMORY_MAX: Final = 1 << 40
_RESPONSE_SLACK: Final = 16 << 20
_START: Final = re.compile(r"earliest|latest|by_duration:P(?=[^T]|T\S)\S+")


class AcquireMode(IntEnum):
    """How many records a fetch acquires (KIP-1206)."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


def _acquire_mode(name: str, given: Any) -> AcquireMode:
    if isinstance(given, AcquireMode):
        return given
    try:
        return AcquireMode[str(given).upper()]
    except KeyError:
        raise values.refused(name, given, 'give "record_limit" or "batch_optimized"') from None


def _start(name: str, given: Any) -> str:
    if isinstance(given, str) and _START.fullmatch(given):
        return given
    hint = 'give "earliest", "latest", "by_duration:P1DT2H" or None'
    raise values.refused(name, given, hint)


class QueueKeywords(ClientKeywords, total=False):
    """The keyword arguments of queues, for type checkers."""

    group_id: str | None
    prefetch: int
    acquire_mode: Literal["record_limit", "batch_optimized"] | AcquireMode
    auto_offset_reset: str | None
    lock_extend: bool
    lock_extend_max_ms: int
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    queued_bytes_max: int
    check_crcs: bool
    linger_ms: int
    compression_type: CompressionName | Codec
    allow_auto_create_topics: bool
    default_api_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(ClientOptions):
    """The options of queues."""

    kind: ClassVar[str] = "queues"

    group_id: str | None = option(
        None,
        values.maybe(values.name_text),
        "The share group whose members divide the jobs. None: it has the name of the topic.",
    )
    prefetch: int = option(
        100,
        values.whole(1, PREFETCH_MAX),
        "How many jobs this client may hold that are not settled yet, buffered ones included.",
        kafka="max.poll.records",
    )
    acquire_mode: AcquireMode = option(
        AcquireMode.RECORD_LIMIT,
        _acquire_mode,
        '"record_limit" keeps to `prefetch` exactly. "batch_optimized" may exceed it by a batch, '
        "and is faster if producers write large batches.",
        kafka="share.acquire.mode",
    )
    auto_offset_reset: str | None = option(
        "earliest",
        values.maybe(_start),
        "Where a new group begins: set for the group when the first worker joins it, unless the "
        "group has the setting already. None leaves the group as it is.",
        kafka="share.auto.offset.reset",
    )
    lock_extend: bool = option(
        True,
        values.flag,
        "Extends the locks of jobs that are not settled yet, before the locks end.",
        kafka="",
    )
    lock_extend_max_ms: int = option(
        3_600_000,
        values.whole(1),
        "For how long in total the lock of a job is extended. After that the lock ends, and the "
        "job is delivered again.",
        kafka="",
    )
    fetch_min_bytes: int = option(
        1, values.whole(0), "A fetch waits until there are this many bytes."
    )
    fetch_max_bytes: int = option(
        16 << 20, values.whole(1), "A fetch returns no more bytes than this."
    )
    fetch_max_wait_ms: int = option(
        500, values.whole(0), "A fetch waits no longer than this for `fetch_min_bytes`."
    )
    queued_bytes_max: int = option(
        64 << 20, values.whole(1, _MEMORY_MAX), "How many bytes of jobs are held.", kafka=""
    )
    check_crcs: bool = option(True, values.flag, "Checks that jobs arrived as they were written.")
    linger_ms: int = option(
        0, values.whole(0), "How long `put` waits for more jobs to send them together."
    )
    compression_type: Codec = option(
        Codec.NONE, values.codec, 'How jobs are compressed: "gzip", "snappy", "lz4" or "zstd".'
    )
    allow_auto_create_topics: bool = option(
        True, values.flag, "Lets the broker create the topic if it does not exist."
    )
    default_api_timeout_ms: int = option(
        60_000,
        values.whole(1),
        "How long a call is tried before it fails, unless it has a timeout.",
    )

    def __post_init__(self) -> None:
        ClientOptions.__post_init__(self)
        if self.fetch_max_wait_ms >= self.request_timeout_ms:
            raise OptionError(
                f"fetch_max_wait_ms ({self.fetch_max_wait_ms}) must be less than "
                f"request_timeout_ms ({self.request_timeout_ms}), or idle fetches time out"
            )

    def connection_config(self) -> ConnectionConfig:
        base = ClientOptions.connection_config(self)
        # A response exceeds the requested size when its first batch alone is larger.
        largest = max(
            base.response_bytes_max, min(self.fetch_max_bytes + _RESPONSE_SLACK, INT32_MAX)
        )
        return replace(base, response_bytes_max=largest)

    def common(self) -> dict[str, Any]:
        """Returns the keywords for another client of the same cluster."""
        names = (each.name for each in fields(ClientOptions) if each.name != "bootstrap")
        return {name: getattr(self, name) for name in names}

    def servers(self) -> list[str]:
        return [str(address) for address in self.bootstrap]

    def producer_keywords(self) -> dict[str, Any]:
        """Returns the options of the producer behind `put`."""
        names = ProducerOptions.names() - {"max_block_ms"}
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        shared = {name: value for name, value in own.items() if name in names}
        return {**shared, "max_block_ms": self.default_api_timeout_ms}

    def _deadline_ms(self) -> int:
        return self.default_api_timeout_ms
