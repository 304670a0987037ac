"""The security settings of each listener: prefixes, defaults, and what is refused."""

from __future__ import annotations

import pytest

from penstock.metadata.broker_configs import BROKER_CONFIGS
from penstock.metadata.kafka_only_configs import KAFKA_ONLY_CONFIGS
from penstock.security.listener_security import (
    PEM_CHARS_MAX,
    ClientAuth,
    ListenerSecurity,
    Pem,
    SecurityInvalid,
    TlsProtocol,
    parse_client_tls,
    parse_security,
)
from penstock.security.listeners import Listener, SecurityProtocol

PEM = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"
SECRET = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"
STORES = {"ssl.keystore.location": "/etc/b1.pem", "ssl.truststore.location": "/etc/ca.pem"}
SCRAM = {"sasl.enabled.mechanisms": "SCRAM-SHA-256"}
X = "listener.name.x."
S = f"{X}scram-sha-256."


def _parse(protocol: str, **settings: str) -> ListenerSecurity:
    return _security(protocol, settings)


def _security(protocol: str, settings: dict[str, str]) -> ListenerSecurity:
    listener = Listener("X", "", 9093, SecurityProtocol(protocol))
    return parse_security(settings, [listener])["X"]


def test_a_plaintext_listener_needs_no_settings() -> None:
    found = _parse("PLAINTEXT")
    assert found.tls is None
    assert found.sasl is None
    assert found.failed_authentication_delay_ms == 100
    assert found.max_connections is None


def test_a_tls_listener_has_kafkas_defaults() -> None:
    tls = _security("SSL", STORES).tls
    assert tls is not None
    assert tls.client_auth is ClientAuth.NONE
    assert tls.protocols == {TlsProtocol.TLS_1_2, TlsProtocol.TLS_1_3}
    assert tls.ciphers == ()
    assert tls.verifies_host_name
    assert not tls.allows_dn_changes
    assert not tls.allows_san_changes
    assert tls.rules.user("CN=alice") == "CN=alice"
    assert tls.keystore is not None
    assert tls.keystore.chain == Pem("ssl.keystore.location", path="/etc/b1.pem")
    assert tls.truststore == Pem("ssl.truststore.location", path="/etc/ca.pem")


def test_a_listeners_own_setting_takes_precedence() -> None:
    own = {f"{X}ssl.keystore.location": "/etc/x.pem", f"{X}ssl.client.auth": "required"}
    tls = _security("SSL", {**STORES, "ssl.client.auth": "requested", **own}).tls
    assert tls is not None
    assert tls.keystore is not None
    assert tls.keystore.private_key.path == "/etc/x.pem"
    assert tls.client_auth is ClientAuth.REQUIRED


def test_listeners_do_not_see_each_others_settings() -> None:
    """Even if the name of one is the begin of the name of the other."""
    names = ["X", "X-Y", "XY"]
    listeners = [Listener(name, "", 1, SecurityProtocol.SSL) for name in names]
    own = {f"listener.name.{name.lower()}.ssl.keystore.location": f"/{name}" for name in names}
    found = parse_security(own, listeners)
    for name in names:
        tls = found[name].tls
        assert tls is not None
        assert tls.keystore is not None
        assert tls.keystore.chain.path == f"/{name}"


def test_with_sasl_the_broker_wide_client_auth_is_ignored() -> None:
    """This causes a warning: clients are not asked for the certificate."""
    shared = {**STORES, **SCRAM, "ssl.client.auth": "required"}
    found = _security("SASL_SSL", shared)
    assert found.tls is not None
    assert found.tls.client_auth is ClientAuth.NONE
    (warning,) = found.warnings
    assert warning == (
        "ssl.client.auth has no effect on X: with SASL, only listener.name.x.ssl.client.auth asks "
        "clients for a certificate"
    )
    found = _security("SASL_SSL", {**shared, f"{X}ssl.client.auth": "requested"})
    assert found.tls is not None
    assert found.tls.client_auth is ClientAuth.REQUESTED
    assert found.warnings == ()
    assert _security("SASL_SSL", {**shared, "ssl.client.auth": "none"}).warnings == ()
    assert _security("SSL", {**STORES, "ssl.client.auth": "required"}).warnings == ()


GAPS = {  # refused: checks would be left out
    "sasl.oauthbearer.jwt.validator.class",
    "sasl.server.callback.handler.class",
    "ssl.engine.factory.class",
    "ssl.protocol",
}
NOT_FOR_PEM = {"ssl.keystore.password", "ssl.truststore.password"}
VALUES = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "ssl.client.auth": "none",
    "ssl.enabled.protocols": "TLSv1.3",
    "ssl.cipher.suites": "",
    "ssl.endpoint.identification.algorithm": "https",
    "ssl.keystore.certificate.chain": "",
    "ssl.keystore.key": "",
    "ssl.principal.mapping.rules": "DEFAULT",
    "ssl.truststore.certificates": "",
    "ssl.allow.dn.changes": "true",
    "ssl.allow.san.changes": "true",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
}
KAFKA = sorted(
    name
    for name in (*KAFKA_ONLY_CONFIGS, *BROKER_CONFIGS)
    if name.startswith(("ssl.", "sasl.", "connection", "max.connection"))
)


@pytest.mark.parametrize("name", [name for name in KAFKA if name not in GAPS | NOT_FOR_PEM])
def test_settings_of_kafka_are_accepted_if_security_does_not_depend_on_them(name: str) -> None:
    """So the settings of a broker of Kafka can be used as they are."""
    shared = {**STORES, "sasl.enabled.mechanisms": "OAUTHBEARER", name: VALUES.get(name, "1")}
    found = _security("SASL_SSL", shared)
    assert all(name in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("ssl.provider", "OpenSSL"),
        (f"{X}ssl.trustmanager.algorithm", "OpenSSL"),
        ("sasl.kerberos.service.name", "GSSAPI"),
        (f"{S}sasl.login.class", "log in"),
        ("sasl.oauthbearer.token.endpoint.url", "log in"),
        ("sasl.mechanism.controller.protocol", "controllers"),
        ("sasl.jaas.config", "write listener.name.x.MECHANISM.sasl.jaas.config"),
    ],
)
def test_settings_of_kafka_without_effect_cause_a_warning(key: str, reason: str) -> None:
    (warning,) = _security("SASL_SSL", {**STORES, **SCRAM, key: "hush"}).warnings
    assert warning.startswith(f"{key} has no effect on X: ")
    assert reason in warning
    assert "hush" not in warning


def test_only_settings_that_concern_the_protocol_are_refused_or_cause_a_warning() -> None:
    shared = {"ssl.protocol": "TLS", "ssl.provider": "x", "sasl.jaas.config": "x"}
    assert _security("PLAINTEXT", shared).warnings == ()


@pytest.mark.parametrize(
    "key", ["sasl.server.callback.handler.class", "sasl.oauthbearer.jwt.validator.class"]
)
def test_the_classes_of_kafka_itself_may_be_named(key: str) -> None:
    """They make the checks that are made here in any case."""
    name = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
    shared = {"sasl.enabled.mechanisms": "OAUTHBEARER", f"{X}oauthbearer.{key}": name, key: name}
    assert _security("SASL_PLAINTEXT", shared).warnings == ()


def test_settings_of_oauth_can_follow_the_mechanism() -> None:
    key = "sasl.oauthbearer.expected.issuer"
    shared = {"sasl.enabled.mechanisms": "OAUTHBEARER", f"{X}oauthbearer.{key}": "https://a"}
    sasl = _security("SASL_PLAINTEXT", shared).sasl
    assert sasl is not None
    assert sasl.of_mechanism["OAUTHBEARER"][key] == "https://a"


def test_keys_and_certificates_can_be_texts() -> None:
    texts = {"ssl.keystore.key": SECRET, "ssl.keystore.certificate.chain": PEM,
             "ssl.truststore.certificates": PEM, "ssl.key.password": "open sesame"}  # fmt: skip
    found = _security("SSL", texts)
    assert found.tls is not None
    assert found.tls.keystore is not None
    assert found.tls.keystore.private_key.text == SECRET
    assert found.tls.keystore.password == "open sesame"
    assert "c2VjcmV0" not in repr(found)
    assert "sesame" not in repr(found)


def test_a_mechanism_has_its_own_settings() -> None:
    settings = {
        "sasl.enabled.mechanisms": "PLAIN, scram-sha-512",
        "connections.max.reauth.ms": "1000",
        "sasl.jaas.config": "not used: it names no mechanism",
        "sasl.oauthbearer.scope": "a",
        f"{X}plain.sasl.jaas.config": "password=hush",
        f"{X}scram-sha-512.connections.max.reauth.ms": "2000",
    }
    sasl = _security("SASL_PLAINTEXT", settings).sasl
    assert sasl is not None
    assert sasl.mechanisms == ("PLAIN", "SCRAM-SHA-512")
    assert sasl.receive_bytes_max == 524_288
    assert sasl.reauth_ms == {"PLAIN": 1000, "SCRAM-SHA-512": 2000}
    assert sasl.of_mechanism["PLAIN"]["sasl.jaas.config"] == "password=hush"
    assert "sasl.jaas.config" not in sasl.of_mechanism["SCRAM-SHA-512"]
    assert sasl.of_mechanism["SCRAM-SHA-512"]["sasl.oauthbearer.scope"] == "a"
    assert "hush" not in repr(sasl)


def test_limits_of_a_listener_are_those_with_its_prefix() -> None:
    """The others are limits of the broker."""
    found = _security("PLAINTEXT", {"max.connections": "5"})
    assert found.max_connections is None
    own = {f"{X}max.connections": "7", f"{X}max.connection.creation.rate": "3",
           "connection.failed.authentication.delay.ms": "250"}  # fmt: skip
    found = _security("PLAINTEXT", own)
    assert (found.max_connections, found.max_connection_creation_rate) == (7, 3)
    assert found.failed_authentication_delay_ms == 250


ALL_1_3 = "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256"


@pytest.mark.parametrize(
    ("suites", "protocols", "ciphers"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", {"TLSv1.2"}, ("ECDHE-RSA-AES128-GCM-SHA256",)),
        ("ECDHE-RSA-AES128-GCM-SHA256", {"TLSv1.2"}, ("ECDHE-RSA-AES128-GCM-SHA256",)),
        (ALL_1_3, {"TLSv1.3"}, ()),
        (
            f"{ALL_1_3},TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            {"TLSv1.2", "TLSv1.3"},
            ("ECDHE-ECDSA-AES256-GCM-SHA384",),
        ),
    ],
)
def test_a_protocol_without_a_suite_is_off(
    suites: str, protocols: set[str], ciphers: tuple[str, ...]
) -> None:
    tls = _security("SSL", {**STORES, "ssl.cipher.suites": suites}).tls
    assert tls is not None
    assert ({*map(str, tls.protocols)}, tls.ciphers) == (protocols, ciphers)


@pytest.mark.parametrize(
    ("protocol", "settings", "problem"),
    [
        ("SSL", {}, "listener.name.x.ssl.keystore.location is missing"),
        ("SASL_SSL", SCRAM, "listener.name.x.ssl.keystore.location is missing"),
        ("SASL_SSL", STORES, "listener.name.x.sasl.enabled.mechanisms is missing"),
        ("SASL_PLAINTEXT", {}, "listener.name.x.sasl.enabled.mechanisms is missing"),
        ("SASL_PLAINTEXT", {"sasl.enabled.mechanisms": " , "}, "mechanisms is missing"),
        ("SASL_PLAINTEXT", {"sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI, which is not supported"),
        ("SASL_PLAINTEXT", {**SCRAM, f"{X}plain.sasl.jaas.config": "x"}, "PLAIN is not in"),
        ("SASL_PLAINTEXT", {**SCRAM, "sasl.server.max.receive.size": "0"}, "above 0"),
        ("SASL_PLAINTEXT", {**SCRAM, "connections.max.reauth.ms": "-1"}, "at least 0"),
        ("SASL_PLAINTEXT", {**SCRAM, f"{X}scram-sha-256.{'connections.max.reauth.ms'}": "x"},
         "listener.name.x.scram-sha-256.connections.max.reauth.ms is 'x'"),
        ("PLAINTEXT", {f"{X}max.connections": "many"}, "listener.name.x.max.connections is"),
        ("PLAINTEXT", {f"{X}max.connections": "٣"}, "whole number"),
        # A certificate must be asked for, and checked.
        ("SSL", {**STORES, "ssl.truststore.location": "", "ssl.client.auth": "required"},
         "ssl.truststore.location is missing"),
        ("SSL", {**STORES, "ssl.client.auth": "Required"}, "none, requested or required"),
        ("SSL", {**STORES, "ssl.client.auth": ""}, "none, requested or required"),
        # Settings that would have no effect.
        ("PLAINTEXT", {f"{X}ssl.client.auth": "required"}, "has no effect.*uses PLAINTEXT"),
        ("SASL_PLAINTEXT", {**SCRAM, f"{X}ssl.client.auth": "required"}, "has no effect"),
        ("SSL", {**STORES, f"{X}sasl.enabled.mechanisms": "PLAIN"}, "has no effect"),
        ("SSL", {**STORES, f"{X}ssl.cleint.auth": "required"}, "mean listener.name.x.ssl.client"),
        ("SSL", {**STORES, f"{X}log.dirs": "/"}, "is not a setting of a listener"),
        ("SSL", {**STORES, "listener.name.y.ssl.client.auth": "required"}, "does not exist"),
        ("SSL", {**STORES, "listener.name.X.ssl.client.auth": "required"}, "in lower case"),
        # Names that are misspelled, or unknown.
        ("SSL", {**STORES, "ssl.client.auht": "required"}, "mean ssl.client.auth"),
        ("SSL", {**STORES, "SSL.client.auth": "required"}, "mean ssl.client.auth"),
        ("SSL", {**STORES, "ssl.principal.mapping.rule": "x"}, "mean ssl.principal.mapping.rules"),
        ("SSL", {**STORES, "ssl.crl.location": "/etc/crl"}, "ssl.crl.location is not a setting"),
        ("PLAINTEXT", {"ssl.client.auht": "required"}, "mean ssl.client.auth"),
        ("SASL_PLAINTEXT", {**SCRAM, "connection.max.reauth.ms": "1"}, "mean connections.max"),
        ("SASL_PLAINTEXT", {**SCRAM, "sasl.server.max.receive.sizes": "1"}, "mean sasl.server.max"),
        ("SASL_PLAINTEXT", {**SCRAM, "sasl.oauthbearer.expected.audiences": "a"}, "mean sasl"),
        ("SASL_PLAINTEXT", {**SCRAM, f"{X}sasl.oauthbearer.expected.isuer": "a"}, "mean listener"),
        ("SASL_PLAINTEXT", {**SCRAM, "plain.connections.max.reauth.ms": "1"}, "is not a setting"),
        ("SSL", {**STORES, "listener.names.x.ssl.client.auth": "required"}, "is not a setting"),
        ("SSL", {**STORES, "Listener.name.x.ssl.client.auth": "required"}, "is not a setting"),
        # Names after a mechanism.
        ("SASL_PLAINTEXT", {**SCRAM, f"{S}connections.max.reauth.mss": "1"}, "mean listener"),
        ("SASL_PLAINTEXT", {**SCRAM, f"{S}sasl.jaas.confg": "x"}, "mean .*sha-256.sasl.jaas"),
        ("SASL_PLAINTEXT", {**SCRAM, f"{S}sasl.server.max.receive.size": "1"}, "not a setting"),
        ("SASL_PLAINTEXT", {**SCRAM, f"{S}sasl.oauthbearer.expected.issuer": "i"}, "not a setting"),
        ("SASL_SSL", {**STORES, **SCRAM, f"{S}ssl.client.auth": "required"}, "not a setting"),
        # Settings of Kafka whose checks would be left out.
        ("SSL", {**STORES, "ssl.protocol": "TLSv1.3"}, "ssl.protocol has no effect: .*ssl.enabled"),
        ("SSL", {**STORES, f"{X}ssl.protocol": "TLSv1.3"}, "listener.name.x.ssl.protocol has no"),
        ("SSL", {**STORES, "ssl.engine.factory.class": "com.acme.Tls"}, "checks cannot run here"),
        ("SASL_PLAINTEXT", {**SCRAM, "sasl.server.callback.handler.class": "com.acme.Ldap"},
         "checks cannot run here"),
        ("SASL_PLAINTEXT", {**SCRAM, f"{S}sasl.server.callback.handler.class": "com.acme.Ldap"},
         "listener.name.x.scram-sha-256.sasl.server.callback.handler.class names a Java class"),
        ("SASL_PLAINTEXT", {**SCRAM, "sasl.oauthbearer.jwt.validator.class": "com.acme.Jwt"},
         "checks cannot run here"),
        # Stores.
        ("SSL", {**STORES, "ssl.keystore.type": "JKS"}, "ssl.keystore.type must be PEM"),
        ("SSL", {**STORES, "ssl.truststore.type": "PKCS12"}, "ssl.truststore.type must be PEM"),
        ("SSL", {**STORES, "ssl.keystore.password": "p"}, "ssl.key.password"),
        ("SSL", {**STORES, "ssl.keystore.key": SECRET}, "use one of them"),
        ("SSL", {**STORES, "ssl.truststore.certificates": PEM}, "use one of them"),
        ("SSL", {"ssl.keystore.key": SECRET}, "certificate.chain is missing"),
        ("SSL", {"ssl.keystore.certificate.chain": PEM}, "ssl.keystore.key is missing"),
        ("SSL", {"ssl.keystore.key": "/etc/key.pem"}, "must be PEM text"),
        ("SSL", {"ssl.keystore.key": SECRET * (PEM_CHARS_MAX // 50)}, "must be PEM text"),
        # Protocols and the rest.
        ("SSL", {**STORES, "ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.2 and TLSv1.3"),
        ("SSL", {**STORES, "ssl.enabled.protocols": ""}, "TLSv1.2 and TLSv1.3"),
        ("SSL", {**STORES, "ssl.cipher.suites": "TLS_RSA_WITH_RC4_128_MD5"}, "no longer secure"),
        ("SSL", {**STORES, "ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "only some suites"),
        ("SSL", {**STORES, "ssl.cipher.suites": ALL_1_3, "ssl.enabled.protocols": "TLSv1.2"},
         "no suite for a protocol"),
        ("SSL", {**STORES, "ssl.principal.mapping.rules": "RULE:"}, "ssl.principal.mapping.rules"),
        ("SSL", {**STORES, "ssl.endpoint.identification.algorithm": "ldaps"}, "must be https"),
        ("SSL", {**STORES, "ssl.allow.dn.changes": "yes"}, "true or false"),
    ],
)  # fmt: skip
def test_settings_that_leave_a_gap_are_refused(
    protocol: str, settings: dict[str, str], problem: str
) -> None:
    with pytest.raises(SecurityInvalid, match=problem):
        _security(protocol, settings)


def test_an_error_does_not_show_the_key() -> None:
    broken = SECRET.replace("-----BEGIN ", "BEGIN ")
    with pytest.raises(SecurityInvalid) as refused:
        _security("SSL", {"ssl.keystore.key": broken})
    assert "c2VjcmV0" not in str(refused.value)


def test_a_client_needs_no_certificate() -> None:
    tls = parse_client_tls({"ssl.endpoint.identification.algorithm": ""})
    assert tls.keystore is None
    assert tls.truststore is None
    assert not tls.verifies_host_name
    tls = parse_client_tls({**STORES, "ssl.client.auth": "required"})
    assert tls.keystore is not None
    assert tls.verifies_host_name


@pytest.mark.parametrize("key", ["ssl.truststore.locaton", "SSL.truststore.location"])
def test_a_client_does_not_trust_others_because_of_a_misspelled_setting(key: str) -> None:
    """Without a truststore, it would trust the authorities of its system."""
    with pytest.raises(SecurityInvalid, match=r"did you mean ssl\.truststore\.location\?"):
        parse_client_tls({key: "/etc/ca.pem"})
