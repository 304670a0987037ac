"""Spark on a broker with TLS, logins and access control: its own Kafka connector, and ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compat.clients.base import wait_until
from compat.secured_broker import PREFIX, SecuredBroker, Way, allowed, token
from compat.token_endpoint import TokenEndpoint
from penstock import Admin, Consumer, Producer
from penstock.client import profiles
from penstock.security.acl_filters import AclFilter
from penstock.security.acls import AclOperation, ResourceType
from penstock.testing.slowness import patient

pytest.importorskip("pyspark", reason="the Spark tests need pyspark: pip install 'penstock[spark]'")

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from compat.spark_session import spark_with_connector, without_sparks_own_warnings

pytestmark = pytest.mark.timeout(600)  # Starting a JVM takes minutes on a busy machine.
END_S = 150
ERRORS = (PySparkException, Py4JError)
"""What a query raises. Errors of the connector's Java client in the driver are not converted."""
KINDS = ("kafka", "penstock")
WAYS = ("TLS", "mTLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CASES = [*((kind, way) for kind in KINDS for way in WAYS), ("penstock", "OAUTHBEARER")]
Name = Callable[[], str]
Options = dict[str, str]


@pytest.fixture(scope="module")
def profiles_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where profiles are. The Python processes of Spark have the environment of its JVM."""
    folder = tmp_path_factory.mktemp("config")
    with pytest.MonkeyPatch.context() as patches:
        patches.setenv("XDG_CONFIG_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def spark(
    tmp_path_factory: pytest.TempPathFactory, profiles_folder: Path
) -> Iterator[SparkSession]:
    with spark_with_connector(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(autouse=True)
def _sparks_own_warnings() -> Iterator[None]:
    with without_sparks_own_warnings():
        yield


def connector_options(way: Way) -> Options:
    """The settings of the Java client that is in Spark's connector."""
    given = {"ssl.truststore.type": "PEM", "ssl.truststore.location": way.authority}
    if way.certificate:
        chain, key = Path(way.certificate).read_text(), Path(way.key).read_text()
        given |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": chain,
            "ssl.keystore.key": key,
        }
    if way.password:
        module = "plain.Plain" if way.mechanism == "PLAIN" else "scram.Scram"
        given["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module}LoginModule required "
            f'username="{way.user}" password="{way.password}";'
        )
        # The client of the connector tries a refused login again until its time is over.
        given["default.api.timeout.ms"] = str(int(patient(20_000)))
    return given


def our_options(way: Way) -> Options:
    given = {"ssl.ca": way.authority}
    if way.certificate:
        given |= {"ssl.certificate": way.certificate, "ssl.key": way.key}
    if way.credentials:
        given |= {
            "sasl.oauth.token.url": way.credentials.url,
            "sasl.oauth.client.id": way.credentials.client_id,
            "sasl.oauth.client.secret": way.credentials.secret,
        }
    elif way.password:
        given |= {"sasl.username": way.user, "sasl.password": way.password}
    return given


def options(kind: str, way: Way) -> Options:
    given = {"bootstrap.servers": way.bootstrap, "security.protocol": way.protocol}
    if way.mechanism:
        given["sasl.mechanism"] = way.mechanism
    given |= connector_options(way) if kind == "kafka" else our_options(way)
    return {f"kafka.{name}": value for name, value in given.items()}


def copy(spark: SparkSession, kind: str, given: Options, topic: str) -> None:
    """Writes ten rows to a topic, reads them, and writes them again."""
    rows = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format(kind).mode("append").options(topic=topic, **given).save()
    read = spark.read.format(kind).options(subscribe=topic, **given).load()
    again = read.selectExpr("concat('again ', CAST(value AS STRING)) AS value")
    again.write.format(kind).mode("append").options(topic=topic, **given).save()


def values_in(secured: SecuredBroker, topic: str) -> list[bytes]:
    with Consumer(secured.plain) as consumer:
        return sorted(row["value"] for row in consumer.read_table(topic).to_pylist())


COPIED = sorted([b"%d" % n for n in range(10)] + [b"again %d" % n for n in range(10)])


@pytest.fixture
def owned(secured: SecuredBroker, name: Name) -> str:
    """A topic of the user."""
    made = PREFIX + name()
    with Admin(secured.plain) as admin:
        admin.create_topic(made, partitions=2)
    return made


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_spark_reads_and_writes_with_its_rights(
    spark: SparkSession,
    secured: SecuredBroker,
    endpoint: TokenEndpoint,
    owned: str,
    kind: str,
    way: str,
) -> None:
    copy(spark, kind, options(kind, secured.way(way).at(endpoint)), owned)
    assert values_in(secured, owned) == COPIED


def test_spark_reads_and_writes_with_a_profile(
    spark: SparkSession,
    secured: SecuredBroker,
    owned: str,
    profiles_folder: Path,
) -> None:
    way = secured.way("SCRAM-SHA-512")
    values: dict[str, Any] = {
        "security_protocol": way.protocol,
        "ssl_ca": way.authority,
        "sasl_mechanism": way.mechanism,
        "sasl_username": way.user,
        "sasl_password": way.password,
    }
    profiles.save("prod", way.bootstrap, values)
    assert [*profiles_folder.rglob("prod.toml")]
    copy(spark, "penstock", {"profile": "prod"}, owned)
    assert values_in(secured, owned) == COPIED


def message_of(error: BaseException) -> str:
    return str(error).lower()


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_password_is_refused(
    spark: SparkSession, secured: SecuredBroker, owned: str, kind: str
) -> None:
    way = replace(secured.way("SCRAM-SHA-512"), password="wrong password")
    with pytest.raises(ERRORS) as reading:
        spark.read.format(kind).options(subscribe=owned, **options(kind, way)).load().collect()
    with pytest.raises(ERRORS) as writing:
        copy(spark, kind, options(kind, way), owned)
    for caught in (reading, writing):
        assert "authentication" in message_of(caught.value)
        assert way.password not in message_of(caught.value)
    assert values_in(secured, owned) == []


def test_an_expired_token_is_refused(
    spark: SparkSession, secured: SecuredBroker, endpoint: TokenEndpoint, owned: str
) -> None:
    way = replace(secured.way("OAUTHBEARER"), token=token(expires_in_s=-600)).at(endpoint)
    given = options("penstock", way)
    with pytest.raises(ERRORS, match=r"(?s)AuthenticationFailed.*cannot log in") as caught:
        spark.read.format("penstock").options(subscribe=owned, **given).load().collect()
    assert way.token not in str(caught.value)


def started(spark: SparkSession, kind: str, given: Options, topic: str, folder: Path) -> Any:
    """Starts a query that reads a topic from its beginning."""
    return (
        spark.readStream.format(kind)
        .options(subscribe=topic, startingOffsets="earliest", **given)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder))
        .start()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_fails_when_its_delegation_token_expires(
    spark: SparkSession, secured: SecuredBroker, owned: str, kind: str, tmp_path: Path
) -> None:
    way = secured.way("SCRAM-SHA-512")
    login: dict[str, Any] = {
        "security_protocol": way.protocol,
        "ssl_ca": way.authority,
        "sasl_mechanism": way.mechanism,
        "sasl_username": way.user,
        "sasl_password": way.password,
    }
    with Admin(way.bootstrap, **login) as admin:
        made = admin.create_delegation_token()
        given = options(kind, replace(way, user=made.token_id, password=made.hmac))
        if kind == "kafka":
            jaas = given["kafka.sasl.jaas.config"].removesuffix(";")
            given["kafka.sasl.jaas.config"] = f'{jaas} tokenauth="true";'
        else:
            given["kafka.sasl.tokenauth"] = "true"
        copy(spark, kind, given, owned)
        query = started(spark, kind, given, owned, tmp_path)
        try:
            query.processAllAvailable()
            admin.expire_delegation_token(made.hmac)
            with pytest.raises(PySparkException, match=r"(?i)authentication") as caught:
                query.awaitTermination(int(patient(END_S)))
        finally:
            query.stop()
    assert made.hmac not in str(caught.value)


def test_a_query_goes_on_with_new_tokens_of_an_endpoint(
    spark: SparkSession,
    secured: SecuredBroker,
    endpoint: TokenEndpoint,
    owned: str,
    tmp_path: Path,
) -> None:
    """Its first tokens have expired when the second record is written."""
    life_s = int(patient(6))
    source = endpoint.register_source(lambda: token(expires_in_s=life_s), life_s)
    given = options("penstock", replace(secured.way("OAUTHBEARER"), credentials=source))
    with Producer(secured.plain) as producer:
        producer.send(owned, b"first").result()
        query = started(spark, "penstock", given, owned, tmp_path)
        try:
            query.processAllAvailable()
            expired_at = time.time() + life_s
            assert wait_until(lambda: time.time() > expired_at, within_s=END_S + life_s)
            assert query.isActive, query.exception()
            producer.send(owned, b"second").result()
            query.processAllAvailable()
            assert sum(each["numInputRows"] for each in query.recentProgress) == 2
        finally:
            query.stop()
    assert endpoint.asked[source.client_id] > 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_that_is_taken_away_ends_a_running_query(
    spark: SparkSession, secured: SecuredBroker, kind: str, other: str, tmp_path: Path
) -> None:
    given = options(kind, secured.way("SCRAM-SHA-256"))
    rules = [
        allowed(ResourceType.TOPIC, other, operation)
        for operation in (AclOperation.READ, AclOperation.WRITE)
    ]
    with Admin(secured.plain) as admin:
        assert not any(admin.create_acls(rules).values())
        rows = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
        rows.write.format(kind).mode("append").options(topic=other, **given).save()
        query = started(spark, kind, given, other, tmp_path)
        try:
            query.processAllAvailable()
            deleted = admin.delete_acls([AclFilter(resource_name=other)])
            assert [len(each) for each in deleted if isinstance(each, list)] == [2]
            with pytest.raises(PySparkException, match=r"(?i)authoriz|not allowed on this topic"):
                query.awaitTermination(int(patient(END_S)))
        finally:
            query.stop()
