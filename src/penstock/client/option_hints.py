"""Error messages for options that do not exist. Pure.

Users come from other clients and use their option names: Java's and librdkafka's with dots, and
those of kafka-python and aiokafka. The error for `queue.buffering.max.ms` suggests `linger_ms`.
Only a name that no client uses is answered with the most similar one.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Final

from penstock.client.errors import OptionError

_CALLED: Final[Mapping[str, str]] = {
    "auto_commit_enable": "enable_auto_commit",
    "compression": "compression_type",
    "compression_codec": "compression_type",
    "fetch_max_wait": "fetch_max_wait_ms",
    "fetch_message_max_bytes": "max_partition_fetch_bytes",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "group": "group_id",
    "linger": "linger_ms",
    "max_batch_size": "batch_size",
    "max_in_flight": "max_in_flight_requests_per_connection",
    "message_max_bytes": "max_request_size",
    "message_send_max_retries": "retries",
    "message_timeout_ms": "delivery_timeout_ms",
    "partitioner": "router",
    "partitioner_class": "router",
    "queue_buffering_max_ms": "linger_ms",
    "request_required_acks": "acks",
    "socket_timeout_ms": "request_timeout_ms",
    "topic_metadata_refresh_interval_ms": "metadata_max_age_ms",
    "interceptor_classes": "interceptors",
}
"""Maps option names of other clients to the names here."""

_NO_TLS: Final = "connections are plain text so far; put a TLS tunnel in front, or leave it out"
_KEYS: Final = "a producer takes key_serializer=..., a consumer key_deserializer=..."
_VALUES: Final = "a producer takes value_serializer=..., a consumer value_deserializer=..."
_SOCKETS: Final = "the operating system sizes socket buffers well; leave it out"

_ANSWERS: Final[Mapping[str, str]] = {
    "api_version": "versions are settled with each broker by itself; leave it out",
    "api_version_auto_timeout_ms": "versions are settled with each broker by itself; leave it out",
    "api_version_request": "versions are settled with each broker by itself; leave it out",
    "batch_num_messages": "batches are bounded by bytes, not by messages: set batch_size",
    "connections_max_idle_ms": "connections stay open until the broker closes them; leave it out",
    "consumer_timeout_ms": "iteration does not end by itself; use poll(timeout_ms=...)",
    "debug": "use logging.getLogger('penstock').setLevel('DEBUG')",
    "delivery_report_only_error": "give send(on_delivery=...) and look at its error",
    "dr_cb": "give send(on_delivery=...), or wait for what send returns",
    "enable_auto_offset_store": "set enable_auto_commit=False and commit what is done",
    "enable_partition_eof": "compare position(...) with end_offsets(...), or use read_table",
    "error_cb": "errors are raised where they matter; there is no callback to give",
    "group_protocol": "groups speak the classic protocol; leave it out",
    "key_deserializer": _KEYS,
    "key_serializer": _KEYS,
    "logger": "use logging.getLogger('penstock')",
    "loop": "the running event loop is used; leave it out",
    "metadata_broker_list": "give the brokers first: Producer('host:9092')",
    "bootstrap_servers": "give the brokers first: Producer('host:9092')",
    "metric_reporters": "call metrics() when you want to know",
    "metrics_num_samples": "call metrics() when you want to know",
    "on_delivery": "give send(on_delivery=...)",
    "queue_buffering_max_kbytes": "it is called buffer_memory here, and counts bytes",
    "queue_buffering_max_messages": "the buffer is bounded by bytes: set buffer_memory",
    "queued_max_messages_kbytes": "it is called queued_bytes_max here, and counts bytes",
    "queued_min_messages": "the prefetch is bounded by bytes: set queued_bytes_max",
    "receive_buffer_bytes": _SOCKETS,
    "receive_message_max_bytes": "an answer may be as large as fetch_max_bytes asks for",
    "reconnect_backoff_max_ms": "set retry_backoff_max_ms: it is the wait before any new attempt",
    "reconnect_backoff_ms": "set retry_backoff_ms: it is the wait before any new attempt",
    "selector": "the running event loop is used; leave it out",
    "send_buffer_bytes": _SOCKETS,
    "statistics_interval_ms": "call metrics() when you want to know",
    "stats_cb": "call metrics() when you want to know",
    "value_deserializer": _VALUES,
    "value_serializer": _VALUES,
}
"""Maps names that are not options here to what to do instead."""

_FAMILIES: Final[Mapping[str, str]] = {
    "sasl_": _NO_TLS,
    "security_": _NO_TLS,
    "ssl_": _NO_TLS,
    "socks5_": "there is no proxy support; leave it out",
}


def unknown(
    name: str, known: Collection[str], elsewhere: Mapping[str, Collection[str]]
) -> OptionError:
    """Returns the error for an unknown option. `elsewhere` has the options of the other clients."""
    return OptionError(f"unknown option {name!r}: {_advice(name, known, elsewhere)}")


def _advice(name: str, known: Collection[str], elsewhere: Mapping[str, Collection[str]]) -> str:
    plain = name.strip().lower().replace(".", "_").replace("-", "_")
    if plain != name and plain in known:
        return f"it is spelled {plain} here"
    called = _CALLED.get(plain)
    if called in known:
        return f"it is called {called} here"
    for owner, names in elsewhere.items():
        if plain in names or called in names:
            return f"{called or plain} is an option of {owner}"
    if plain in _ANSWERS:
        return _ANSWERS[plain]
    for prefix, answer in _FAMILIES.items():
        if plain.startswith(prefix):
            return answer
    near = difflib.get_close_matches(plain, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"known are {', '.join(sorted(known))}"
