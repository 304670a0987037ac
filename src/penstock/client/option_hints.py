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
    "oauth_cb": "sasl_oauth_token",
    "sasl_mechanisms": "sasl_mechanism",
    "sasl_oauth_token_provider": "sasl_oauth_token",
    "sasl_oauthbearer_client_credentials_client_id": "sasl_oauth_client_id",
    "sasl_oauthbearer_client_credentials_client_secret": "sasl_oauth_client_secret",
    "sasl_oauthbearer_client_id": "sasl_oauth_client_id",
    "sasl_oauthbearer_client_secret": "sasl_oauth_client_secret",
    "sasl_oauthbearer_scope": "sasl_oauth_scope",
    "sasl_oauthbearer_token_endpoint_url": "sasl_oauth_token_url",
    "sasl_plain_password": "sasl_password",
    "sasl_plain_username": "sasl_username",
    "sasl_user": "sasl_username",
    "ssl_ca_location": "ssl_ca",
    "ssl_ca_pem": "ssl_ca",
    "ssl_cadata": "ssl_ca",
    "ssl_cafile": "ssl_ca",
    "ssl_certfile": "ssl_certificate",
    "ssl_certificate_location": "ssl_certificate",
    "ssl_certificate_pem": "ssl_certificate",
    "ssl_key_location": "ssl_key",
    "ssl_key_pem": "ssl_key",
    "ssl_keyfile": "ssl_key",
    "ssl_keystore_certificate_chain": "ssl_certificate",
    "ssl_keystore_key": "ssl_key",
    "ssl_password": "ssl_key_password",
    "ssl_truststore_certificates": "ssl_ca",
    "ssl_truststore_location": "ssl_ca",
}
"""Maps option names of other clients to the names here."""

_KERBEROS: Final = "Kerberos (GSSAPI) is not supported: use SCRAM-SHA-512 or OAUTHBEARER"
_NO_CONTEXT: Final = (
    "the client makes the TLS context: give ssl_ca, ssl_certificate and ssl_key as PEM files"
)
_PEM_ONLY: Final = (
    "keys and certificates are PEM files, not keystores: give ssl_ca, ssl_certificate and ssl_key"
)
_KEYS: Final = "producers have key_serializer, consumers have key_deserializer"
_VALUES: Final = "producers have value_serializer, consumers have value_deserializer"
_SOCKETS: Final = "the operating system sizes the socket buffers; leave the option out"
_VERSIONS: Final = "the client negotiates API versions with each broker; leave the option out"

_ANSWERS: Final[Mapping[str, str]] = {
    "api_version": _VERSIONS,
    "api_version_auto_timeout_ms": _VERSIONS,
    "api_version_request": _VERSIONS,
    "batch_num_messages": "batches are limited by bytes, not by messages: set batch_size",
    "connections_max_idle_ms": (
        "connections stay open until the broker closes them; leave the option out"
    ),
    "consumer_timeout_ms": "iteration over a consumer has no timeout; use poll(timeout_ms=...)",
    "debug": "use logging.getLogger('penstock').setLevel('DEBUG')",
    "delivery_report_only_error": "use send(on_delivery=...) and check the error it receives",
    "dr_cb": "use send(on_delivery=...), or wait for the delivery that send returns",
    "enable_auto_offset_store": "set enable_auto_commit=False and commit processed offsets",
    "enable_partition_eof": "compare position(...) with end_offsets(...), or use read_table",
    "error_cb": "errors are raised by the call that fails; leave the option out",
    "group_protocol": "consumer groups use the classic protocol; leave the option out",
    "key_deserializer": _KEYS,
    "key_serializer": _KEYS,
    "logger": "use logging.getLogger('penstock')",
    "loop": "the running event loop is used; leave the option out",
    "metadata_broker_list": "give the brokers as the first argument: Producer('host:9092')",
    "bootstrap_servers": "give the brokers as the first argument: Producer('host:9092')",
    "metric_reporters": "call metrics() to read the metrics",
    "metrics_num_samples": "call metrics() to read the metrics",
    "on_delivery": "use send(on_delivery=...)",
    "queue_buffering_max_kbytes": "it is called buffer_memory here, and is in bytes",
    "queue_buffering_max_messages": "the buffer is limited by bytes: set buffer_memory",
    "queued_max_messages_kbytes": "it is called queued_bytes_max here, and is in bytes",
    "queued_min_messages": "the prefetch buffer is limited by bytes: set queued_bytes_max",
    "receive_buffer_bytes": _SOCKETS,
    "receive_message_max_bytes": "the limit follows from fetch_max_bytes: set that instead",
    "reconnect_backoff_max_ms": "set retry_backoff_max_ms: it applies to every retry",
    "reconnect_backoff_ms": "set retry_backoff_ms: it applies to every retry",
    "selector": "the running event loop is used; leave the option out",
    "send_buffer_bytes": _SOCKETS,
    "enable_ssl_certificate_verification": (
        "certificates are always verified: give the CA certificate with ssl_ca"
    ),
    "sasl_jaas_config": "give sasl_username and sasl_password",
    "sasl_login_callback_handler_class": "give a function that returns a token: sasl_oauth_token",
    "sasl_oauthbearer_config": "give sasl_oauth_token, or sasl_oauth_token_url for an endpoint",
    "sasl_oauthbearer_method": "give sasl_oauth_token_url for client credentials",
    "ssl_cipher_suites": "OpenSSL chooses the cipher suites; leave the option out",
    "ssl_ciphers": "OpenSSL chooses the cipher suites; leave the option out",
    "ssl_context": _NO_CONTEXT,
    "ssl_endpoint_identification_algorithm": "it is called ssl_check_hostname here: True or False",
    "ssl_keystore_location": _PEM_ONLY,
    "ssl_keystore_password": _PEM_ONLY,
    "ssl_keystore_type": _PEM_ONLY,
    "ssl_truststore_password": _PEM_ONLY,
    "ssl_truststore_type": _PEM_ONLY,
    "statistics_interval_ms": "call metrics() to read the metrics",
    "stats_cb": "call metrics() to read the metrics",
    "value_deserializer": _VALUES,
    "value_serializer": _VALUES,
}
"""Maps names that are not options here to what to do instead."""

_FAMILIES: Final[Mapping[str, str]] = {
    "sasl_kerberos_": _KERBEROS,
    "socks5_": "proxies are not supported; leave the option out",
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
    return f"the options are {', '.join(sorted(known))}"
