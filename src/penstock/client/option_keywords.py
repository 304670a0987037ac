"""The keywords of the clients' constructors, for type checkers.

The typed dicts say what may be written (`acks="all"`); the dataclasses of `options` say what it is
parsed into (`acks == -1`), and document each option. A test keeps the two consistent. Pure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from penstock.client.interceptors import ConsumerInterceptor, ProducerInterceptor
from penstock.client.option_values import GroupProtocol, IsolationLevel, ResetPolicy
from penstock.client.routers import Router
from penstock.records.batch import Codec
from penstock.security.listeners import SecurityProtocol

CompressionName = Literal["none", "gzip", "snappy", "lz4", "zstd"]
AssignorName = Literal["range", "roundrobin", "sticky", "cooperative-sticky"]


SecurityProtocolName = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]


class ClientKeywords(TypedDict, total=False):
    security_protocol: SecurityProtocolName | SecurityProtocol
    ssl_ca: str | None
    ssl_certificate: str | None
    ssl_key: str | None
    ssl_key_password: str | None
    ssl_check_hostname: bool
    sasl_mechanism: str | None
    sasl_username: str | None
    sasl_password: str | None
    sasl_tokenauth: bool
    sasl_oauth_token: str | Callable[[], str | Awaitable[str]] | None
    sasl_oauth_token_url: str | None
    sasl_oauth_client_id: str | None
    sasl_oauth_client_secret: str | None
    sasl_oauth_scope: str | None
    client_id: str
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    socket_connection_setup_timeout_ms: int


class ProducerKeywords(ClientKeywords, total=False):
    acks: Literal[0, 1, -1, "0", "1", "-1", "all"]
    enable_idempotence: bool
    compression_type: CompressionName | Codec
    compression_level: int | None
    batch_size: int
    linger_ms: int
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    max_in_flight_requests_per_connection: int
    delivery_timeout_ms: int
    retries: int
    transactional_id: str | None
    transaction_timeout_ms: int
    router: Router | Callable[..., int] | None
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    allow_auto_create_topics: bool
    interceptors: Sequence[ProducerInterceptor]


class ConsumerKeywords(ClientKeywords, total=False):
    group_id: str | None
    group_instance_id: str | None
    group_protocol: GroupProtocol
    group_remote_assignor: str | None
    client_rack: str
    auto_offset_reset: str | datetime | timedelta | ResetPolicy
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    max_poll_records: int
    max_poll_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    rebalance_timeout_ms: int
    partition_assignment_strategy: AssignorName | Sequence[Any]
    fetch_min_bytes: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    fetch_max_wait_ms: int
    queued_bytes_max: int
    isolation_level: Literal["read_uncommitted", "read_committed"] | IsolationLevel
    check_crcs: bool
    allow_auto_create_topics: bool
    exclude_internal_topics: bool
    default_api_timeout_ms: int
    interceptors: Sequence[ConsumerInterceptor]


class AdminKeywords(ClientKeywords, total=False):
    default_api_timeout_ms: int
