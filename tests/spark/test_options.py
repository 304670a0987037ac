"""Tests the options of source and sink, and the errors for wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client import profiles
from penstock.client.errors import OptionError
from penstock.spark.client_options import check_client
from penstock.spark.options import Bound, SourceOptions, parse_sink, parse_source
from penstock.topic_partition import TopicPartition

BROKER = {"kafka.bootstrap.servers": "localhost:9092"}
TOPIC = {**BROKER, "subscribe": "clicks"}


def source(streaming: bool = False, **more: str) -> SourceOptions:
    return parse_source({**TOPIC, **more}, streaming=streaming)


def test_names_may_be_written_in_any_case() -> None:
    """Spark's options are case-insensitive."""
    found = parse_source(
        {"KAFKA.bootstrap.SERVERS": "b:1", "Subscribe": "a, b,a", "MINPARTITIONS": "4"},
        streaming=False,
    )
    assert (found.bootstrap_servers, found.topics.names, found.partitions_min) == (
        "b:1",
        ("a", "b"),
        4,
    )


def test_a_batch_reads_everything_and_a_stream_only_new_records() -> None:
    """The defaults are those of Spark's Kafka source."""
    assert source().starting == Bound("earliest")
    assert source(streaming=True).starting == Bound("latest")
    assert source().ending == Bound("latest")


def test_timestamps_take_precedence_over_offsets() -> None:
    """One timestamp for all partitions, then one for each, then offsets."""
    each = '{"clicks": {"0": 5}}'
    assert source(startingTimestamp="7", startingOffsetsByTimestamp=each).starting == Bound(
        "timestamp", timestamp_ms=7
    )
    assert source(startingOffsetsByTimestamp=each, startingOffsets="latest").starting == Bound(
        "timestamps", {TopicPartition("clicks", 0): 5}
    )
    assert source(startingOffsets='{"clicks": {"0": -2}}').starting == Bound(
        "offsets", {TopicPartition("clicks", 0): -2}
    )


def test_client_options_are_passed_on() -> None:
    """With the client's own names. The group id may be given there too."""
    more = {"kafka.fetch.max.bytes": "1000", "kafka.group.id": "g"}
    found = parse_source({**TOPIC, **more}, streaming=False)
    assert dict(found.client) == {"fetch_max_bytes": "1000"}
    assert found.group_id == "g"
    assert source(groupId="h").group_id == "h"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "a"}, "kafka.bootstrap.servers is missing"),
        (BROKER, "exactly one of subscribe, subscribePattern, assign: none is set"),
        ({**TOPIC, "assign": '{"a": [0]}'}, "subscribe and assign are set"),
        ({**BROKER, "subscribe": " , "}, "write topic names"),
        ({**BROKER, "subscribePattern": "("}, "subscribePattern is \\("),
        ({**BROKER, "assign": '{"a": 0}'}, "assign must look like .*topic a has 0"),
        ({**TOPIC, "maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
        ({**TOPIC, "maxOffsetsPerTrigger": "-1"}, "whole number above 0"),
        ({**TOPIC, "maxBytesPerTrigger": "lots"}, "write bytes, such as 67108864 or 64m"),
        ({**TOPIC, "maxTriggerDelay": "soon"}, "such as 500ms, 30s or 15m"),
        ({**TOPIC, "failOnDataLoss": "maybe"}, "write true or false"),
        ({**TOPIC, "startingOffsets": "first"}, "earliest, latest, or JSON"),
        ({**TOPIC, "endingOffsets": "earliest"}, "latest, or JSON"),
        ({**TOPIC, "startingOffsets": '{"clicks": {"0": -3}}'}, "use -2 or more"),
        ({**TOPIC, "endingOffsets": '{"clicks": {"0": -2}}'}, "use -1 or more"),
        ({**TOPIC, "startingTimestamp": "today"}, "milliseconds since 1970"),
        ({**TOPIC, "valueFormat": "xml"}, "bytes or string or json or avro"),
        ({**TOPIC, "valueFormat": "json"}, "also set valueSchema, for example to 'id BIGINT"),
        ({**TOPIC, "valueSchema": "id BIGINT"}, "has no effect with valueFormat=bytes"),
        ({**TOPIC, "valueFormat": "avro"}, "also set valueSchema, to the Avro schema in JSON"),
        ({**TOPIC, "keySchemaId": "7"}, "keySchemaId has no effect with keyFormat=bytes"),
        (
            {**TOPIC, "keyFormat": "avro", "keySchema": "{}", "keySchemaId": "x"},
            "keySchemaId is x: write the id from the schema registry",
        ),
        ({**TOPIC, "badRecords": "deadletter"}, "belong together"),
        ({**TOPIC, "kafka.auto.offset.reset": "earliest"}, "use startingOffsets"),
        ({**TOPIC, "filterPushdown": "true"}, "set it to once, and call load\\(\\) again"),
        ({**TOPIC, "filterPushdown": "yes"}, "filterPushdown is yes: use false or once"),
    ],
)
def test_wrong_options_are_reported_in_one_line(options: dict[str, str], message: str) -> None:
    """Every error names the option and what to write instead."""
    with pytest.raises(OptionError, match=message) as raised:
        parse_source(options, streaming=False)
    assert "\n" not in str(raised.value)


def test_a_sink_needs_no_schema_for_json() -> None:
    """It writes JSON by the types of the columns. Avro needs a schema on both sides."""
    assert parse_sink({**BROKER, "valueFormat": "json"}).formats.value == "json"
    with pytest.raises(OptionError, match="also set valueSchema"):
        parse_sink({**BROKER, "valueFormat": "avro"})
    given = {**BROKER, "valueFormat": "avro", "valueSchema": "{}", "valueSchemaId": "7"}
    assert parse_sink(given).formats.value_schema_id == 7


def test_a_client_option_without_its_prefix_gets_a_suggestion() -> None:
    """The suggestion is the name with the prefix."""
    with pytest.raises(OptionError, match=r"did you mean kafka\.isolation\.level\?"):
        parse_source({**TOPIC, "isolation.level": "read_committed"}, streaming=False)


def test_a_stream_refuses_an_ending() -> None:
    """The error says how to get what was probably intended."""
    with pytest.raises(OptionError, match="availableNow"):
        source(streaming=True, endingOffsets="latest")


def test_sizes_and_durations_have_units() -> None:
    """64m is in mebibytes; 2h becomes milliseconds."""
    found = source(maxBytesPerTrigger="64m", maxTriggerDelay="2h")
    assert (found.trigger_bytes_max, found.trigger_delay_max_ms) == (64 << 20, 7_200_000)


def test_the_sink_refuses_guarantees_that_it_does_not_have() -> None:
    """They are refused, not ignored."""
    assert parse_sink({**BROKER, "topic": "out"}).topic == "out"
    with pytest.raises(OptionError, match="delivery is at_most_once"):
        parse_sink({**BROKER, "delivery": "at_most_once"})
    with pytest.raises(OptionError, match="there is no option subscribe"):
        parse_sink({**BROKER, "subscribe": "a"})


def test_a_profile_is_read_on_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the contents of its files, because executors may not have them. Options replace those
    of the profile, and no secret is shown."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----")
    profiles.save(
        "prod",
        "kafka1:9093",
        {
            "security_protocol": "SASL_SSL",
            "ssl_ca": str(ca),
            "ssl_check_hostname": False,
            "sasl_mechanism": "PLAIN",
            "sasl_username": "alice",
            "sasl_password": " tea-4711 ",
        },
    )
    given = {"profile": "prod", "kafka.sasl.username": "bob"}
    for found in (
        parse_source({**given, "subscribe": "a"}, streaming=False),
        parse_sink({**given, "topic": "a"}),
    ):
        assert found.bootstrap_servers == "kafka1:9093"
        assert found.client["ssl_ca"] == "-----BEGIN CERTIFICATE-----"
        assert "tea-4711" not in repr(found)
        options = check_client(found)
        assert (options.sasl_username, options.sasl_password) == ("bob", " tea-4711 ")
        assert not options.ssl_check_hostname


def test_tls_and_sasl_are_options_of_the_client() -> None:
    login = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": "alice",
    }
    with pytest.raises(OptionError, match=r"needs kafka\.sasl\.password: give it too"):
        check_client(parse_source({**TOPIC, **login}, streaming=False))
    login["kafka.sasl.password"] = "tea-4711"
    checked = check_client(parse_source({**TOPIC, **login}, streaming=False))
    assert "tea-4711" not in repr(checked)
