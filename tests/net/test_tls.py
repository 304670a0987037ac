"""TLS contexts: who gets in, what a reload changes, and what it refuses."""

from __future__ import annotations

import random
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from net.open_files import open_files
from penstock.net.tls import TlsContexts, client_context, peer_certificate
from penstock.net.tls_refused import TlsRefused
from penstock.security.certificates import Issued, Subject, new_authority, new_client, new_server
from penstock.security.listener_security import TlsSettings, parse_client_tls, parse_security
from penstock.security.listeners import Listener, SecurityProtocol
from penstock.security.principal_rules import PrincipalRefused, distinguished_name

NOW_MS = time.time_ns() // 1_000_000
RANDOM = random.Random(17).randbytes
CA = new_authority(Subject("authority"), NOW_MS, RANDOM)
OTHER_CA = new_authority(Subject("other authority"), NOW_MS, RANDOM)
BROKER = Subject("broker", organization="Acme")
HOSTS = ("localhost", "127.0.0.1")


def broker(ca: Issued = CA, now_ms: int = NOW_MS, hosts: tuple[str, ...] = HOSTS) -> Issued:
    return new_server(ca, BROKER, hosts, now_ms, RANDOM)


class Pki:
    """The files of a listener and its clients, in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.put("server", broker())
        self.files["trusted"] = CA.certificate.encode()

    def put(self, path: str, issued: Issued) -> None:
        self.files[path] = (issued.certificate + issued.key).encode()

    def read(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory")
        return self.files[path]

    def settings(self, **more: str) -> TlsSettings:
        """Returns a listener's settings. Underscores in names stand for dots."""
        settings = {"ssl.keystore.location": "server", "ssl.truststore.location": "trusted"}
        settings |= {name.replace("_", "."): value for name, value in more.items()}
        listener = Listener("SSL", "", 0, SecurityProtocol.SSL)
        tls = parse_security(settings, [listener])["SSL"].tls
        assert tls is not None
        return tls

    def contexts(self, is_inter_broker: bool = False, **more: str) -> TlsContexts:
        settings = self.settings(**more)
        return TlsContexts(settings, self.read, NOW_MS, is_inter_broker=is_inter_broker)

    def client(self, issued: Issued | None = None, **more: str) -> ssl.SSLContext:
        settings = {name.replace("_", "."): value for name, value in more.items()}
        if issued is not None:
            settings["ssl.keystore.certificate.chain"] = issued.certificate
            settings["ssl.keystore.key"] = issued.key
        settings.setdefault("ssl.truststore.certificates", CA.certificate)
        return client_context(parse_client_tls(settings), self.read)


def shake_hands(
    server: ssl.SSLContext,
    client: ssl.SSLContext,
    session: ssl.SSLSession | None = None,
    host: str = "localhost",
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Does a handshake in memory. Returns the server's side and the client's."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = server.wrap_bio(to_server, to_client, server_side=True)
    here = client.wrap_bio(to_client, to_server, server_hostname=host, session=session)
    waiting = [here, there]
    for _ in range(10):
        for side in tuple(waiting):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
                waiting.remove(side)
    assert not waiting
    there.write(b"x")
    assert here.read(1) == b"x"  # the tickets have arrived before it
    return there, here


class HasTls:
    def __init__(self, connection: ssl.SSLObject | None) -> None:
        self._connection = connection

    def get_extra_info(self, name: str) -> Any:
        return self._connection if name == "ssl_object" else None


ALICE = new_client(CA, Subject("alice", organization="Acme, Inc"), NOW_MS, RANDOM)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_clients_of_both_versions_get_in(version: str) -> None:
    pki = Pki()
    contexts = pki.contexts()
    there, here = shake_hands(contexts.server(), pki.client(ssl_enabled_protocols=version))
    assert there.version() == here.version() == version
    assert peer_certificate(HasTls(there), NOW_MS) is None


def test_a_listener_without_tls_has_no_certificates() -> None:
    assert peer_certificate(HasTls(None), NOW_MS) is None


def test_a_version_that_is_off_is_refused() -> None:
    pki = Pki()
    server = pki.contexts(ssl_enabled_protocols="TLSv1.3").server()
    with pytest.raises(ssl.SSLError):
        shake_hands(server, pki.client(ssl_enabled_protocols="TLSv1.2"))


def test_the_suites_of_the_settings_are_used() -> None:
    pki = Pki()
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    there, _ = shake_hands(pki.contexts(ssl_cipher_suites=suite).server(), pki.client())
    assert there.cipher() == ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2", 256)
    assert there.version() == "TLSv1.2"


TLS_1_3_SUITES = "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256"


@pytest.mark.parametrize("more", ["", "," + TLS_1_3_SUITES])
def test_suites_that_do_not_fit_the_key_are_refused_at_once(more: str) -> None:
    """The trial handshake finds it: the key is an EC key. Suites of TLS 1.3 fit it, but
    clients of TLS 1.2 could not connect."""
    with pytest.raises(TlsRefused, match=r"trial handshake of TLSv1\.2"):
        Pki().contexts(ssl_cipher_suites="TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384" + more)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_client_with_a_certificate_is_known_by_its_subject(version: str) -> None:
    pki = Pki()
    server = pki.contexts(ssl_client_auth="required").server()
    there, _ = shake_hands(server, pki.client(ALICE, ssl_enabled_protocols=version))
    certificate = peer_certificate(HasTls(there), NOW_MS)
    assert certificate is not None
    assert distinguished_name(certificate) == "CN=alice,O=Acme\\, Inc"


def test_unicode_and_special_characters_of_a_subject_survive() -> None:
    pki = Pki()
    zoe = new_client(CA, Subject('Zoë "日本" +=,', unit=" \\"), NOW_MS, RANDOM)
    there, _ = shake_hands(pki.contexts(ssl_client_auth="required").server(), pki.client(zoe))
    certificate = peer_certificate(HasTls(there), NOW_MS)
    assert certificate is not None
    assert distinguished_name(certificate) == 'CN=Zoë \\"日本\\" \\+\\=\\,,OU=\\ \\\\'


EXPIRED = new_client(CA, Subject("alice"), NOW_MS - 20 * 86_400_000, RANDOM, days=10)
EARLY = new_client(CA, Subject("alice"), NOW_MS + 20 * 86_400_000, RANDOM)
STRANGER = new_client(OTHER_CA, Subject("alice"), NOW_MS, RANDOM)
FORGED_CA = new_authority(Subject("authority"), NOW_MS, RANDOM)
FORGED = new_client(FORGED_CA, Subject("alice"), NOW_MS, RANDOM)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("client_auth", ["required", "requested"])
@pytest.mark.parametrize("issued", [EXPIRED, EARLY, STRANGER, FORGED])
def test_a_certificate_that_is_not_valid_is_refused(
    issued: Issued, client_auth: str, version: str
) -> None:
    """Expired, not valid yet, of another authority, of another authority with the same name. Also
    where a certificate is only requested."""
    pki = Pki()
    server = pki.contexts(ssl_client_auth=client_auth).server()
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, pki.client(issued, ssl_enabled_protocols=version))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_client_without_a_certificate_gets_in_only_where_none_is_required(version: str) -> None:
    pki = Pki()
    client = pki.client(ssl_enabled_protocols=version)
    there, _ = shake_hands(pki.contexts(ssl_client_auth="requested").server(), client)
    assert peer_certificate(HasTls(there), NOW_MS) is None
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake_hands(pki.contexts(ssl_client_auth="required").server(), client)


def test_a_client_refuses_a_server_of_another_authority_or_name() -> None:
    pki = Pki()
    server = pki.contexts().server()
    strict = pki.client(ssl_truststore_certificates=OTHER_CA.certificate)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, strict)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(server, pki.client(), host="b2")
    shake_hands(server, pki.client(ssl_endpoint_identification_algorithm=""), host="b2")


def test_a_client_does_not_accept_a_clients_certificate_from_a_server(tmp_path: Path) -> None:
    pki = Pki()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    path = tmp_path / "alice.pem"
    path.write_bytes(_pem(ALICE))
    server.load_cert_chain(path)
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        shake_hands(server, pki.client(ssl_endpoint_identification_algorithm=""))


def test_where_clients_show_certificates_no_tickets_are_given_out() -> None:
    pki = Pki()
    for client_auth in ("required", "requested"):
        server = pki.contexts(ssl_client_auth=client_auth).server()
        client = pki.client(ALICE, ssl_enabled_protocols="TLSv1.3")
        _, here = shake_hands(server, client)
        assert here.session is None or not here.session.has_ticket
        there, _ = shake_hands(server, client, here.session)
        assert not there.session_reused
    server = pki.contexts().server()
    client = pki.client(ssl_enabled_protocols="TLSv1.3")
    _, here = shake_hands(server, client)
    there, _ = shake_hands(server, client, here.session)
    assert there.session_reused


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_client_that_is_no_longer_trusted_cannot_resume_its_session(version: str) -> None:
    pki = Pki()
    contexts = pki.contexts(ssl_client_auth="required")
    client = pki.client(ALICE, ssl_enabled_protocols=version)
    _, here = shake_hands(contexts.server(), client)
    pki.files["trusted"] = OTHER_CA.certificate.encode()
    assert contexts.reload(NOW_MS)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(contexts.server(), client, here.session)


def test_a_resumed_session_does_not_outlive_the_certificate() -> None:
    """TLS 1.2 can resume a session without a ticket, and then no dates are checked."""
    pki = Pki()
    server = pki.contexts(ssl_client_auth="required").server()
    client = pki.client(ALICE, ssl_enabled_protocols="TLSv1.2")
    _, here = shake_hands(server, client)
    there, _ = shake_hands(server, client, here.session)
    assert there.session_reused
    assert peer_certificate(HasTls(there), NOW_MS)
    with pytest.raises(PrincipalRefused, match="expired since"):
        peer_certificate(HasTls(there), NOW_MS + 366 * 86_400_000)


def _serial(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    _, here = shake_hands(server, client)
    found: Any = here.getpeercert()
    return str(found["serialNumber"])


def test_a_reload_serves_the_new_certificate_to_new_connections() -> None:
    pki = Pki()
    contexts = pki.contexts()
    before = _serial(contexts.server(), pki.client())
    assert not contexts.reload(NOW_MS)
    there, here = shake_hands(contexts.server(), pki.client())
    pki.put("server", broker())
    assert contexts.reload(NOW_MS)
    assert (contexts.reloads, contexts.reloads_refused) == (1, 0)
    assert _serial(contexts.server(), pki.client()) != before
    here.write(b"still here")
    assert there.read(10) == b"still here"


def _pem(issued: Issued) -> bytes:
    return (issued.certificate + issued.key).encode()


OLD_CA = new_authority(Subject("authority"), NOW_MS - 40 * 86_400_000, RANDOM, days=10)


def _cut(issued: Issued) -> bytes:
    """Returns a certificate whose first line lacks a dash."""
    return issued.certificate[1:].encode()


def _both(old: str, new: str) -> bytes:
    """Returns two authorities. Something is replaced in the second one."""
    return (CA.certificate + OTHER_CA.certificate.replace(old, new)).encode()


def _of_version_8(issued: Issued) -> str:
    """Returns a certificate with a version that does not exist."""
    encoded = ssl.PEM_cert_to_DER_cert(issued.certificate)
    changed = encoded.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07", 1)
    return ssl.DER_cert_to_PEM_cert(changed)


@pytest.mark.parametrize(
    ("path", "content", "problem"),
    [
        ("server", (broker().certificate + broker().key).encode(), "key values mismatch"),
        ("server", broker().certificate.encode(), "the key cannot be used"),
        ("server", broker().key.encode(), "no certificate"),
        ("server", b"", "no certificate"),
        ("server", b"\xff\xfe JKS", "no certificate"),
        ("server", _pem(broker())[:700], "ssl.keystore.location"),
        ("server", _pem(broker()) * 2_000, "more than"),
        ("server", _pem(broker(now_ms=NOW_MS - 900 * 86_400_000)), "has expired"),
        ("server", _pem(broker(now_ms=NOW_MS + 9 * 86_400_000)), "not valid yet"),
        ("server", _pem(broker()) + OLD_CA.certificate.encode(), "has expired"),
        ("server", _pem(ALICE), "serverAuth"),
        ("server", _pem(broker()) + _cut(OTHER_CA), "damaged"),
        ("server", _pem(new_server(CA, Subject("b"), HOSTS, NOW_MS, RANDOM)), "allow.dn.changes"),
        ("server", _pem(broker(hosts=("b2",))), "ssl.allow.san.changes"),
        ("trusted", b"", "ssl.truststore.location: no certificate"),
        ("trusted", CA.certificate[:200].encode(), "ssl.truststore.location"),
        ("trusted", OLD_CA.certificate.encode(), "all certificates have expired"),
        ("trusted", CA.certificate.encode() + _cut(OTHER_CA), "1 of its certificates"),
        ("trusted", CA.certificate.encode() + b"-----BEGIN", "damaged"),
        ("trusted", _both("CERTIFICATE", "TRUSTED CERTIFICATE"), "damaged"),
        ("trusted", _both("BEGIN", "Begin"), "damaged"),
        ("trusted", _both("-----BEGIN CERTIFICATE-----\n", ""), "damaged"),
        ("trusted", CA.certificate.encode() + _of_version_8(OTHER_CA).encode(), "version"),
    ],
    ids=range(23),
)
def test_a_bad_reload_is_refused_and_the_old_files_stay_in_use(
    path: str, content: bytes, problem: str
) -> None:
    pki = Pki()
    contexts = pki.contexts(ssl_client_auth="required")
    before = _serial(contexts.server(), pki.client(ALICE))
    server, client = contexts.server(), contexts.client()
    pki.files[path] = content
    with pytest.raises(TlsRefused, match=problem):
        contexts.reload(NOW_MS)
    assert (contexts.reloads, contexts.reloads_refused) == (0, 1)
    assert contexts.server() is server
    assert contexts.client() is client
    assert _serial(contexts.server(), pki.client(ALICE)) == before
    with pytest.raises(ssl.SSLError):
        shake_hands(contexts.server(), pki.client(STRANGER))


def test_a_file_that_is_gone_is_named() -> None:
    pki = Pki()
    contexts = pki.contexts()
    del pki.files["server"]
    with pytest.raises(TlsRefused, match="cannot read server: No such file"):
        contexts.reload(NOW_MS)


def test_a_reload_without_free_file_descriptors_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pki = Pki()
    contexts = pki.contexts()

    def fail(*_: object) -> int:
        raise OSError(24, "Too many open files")

    pki.put("server", broker())
    monkeypatch.setattr("os.memfd_create", fail)
    with pytest.raises(TlsRefused, match="Too many open files"):
        contexts.reload(NOW_MS)
    assert contexts.reloads_refused == 1
    monkeypatch.undo()
    assert contexts.reload(NOW_MS)


def test_an_older_reload_does_not_undo_a_newer_one() -> None:
    """The older one has read the old truststore when the newer one is asked for."""
    pki = Pki()
    older_reads, newer_reads, go_on = (threading.Event() for _ in range(3))

    def read(path: str) -> bytes:
        content = pki.read(path)
        if path == "trusted" and threading.current_thread().name == "older":
            older_reads.set()
            go_on.wait(60)
        elif threading.current_thread().name == "newer":
            newer_reads.set()
        return content

    contexts = TlsContexts(pki.settings(), read, NOW_MS)
    threads = [
        threading.Thread(target=contexts.reload, args=(NOW_MS,), name=name)
        for name in ("older", "newer")
    ]
    pki.put("server", broker())
    threads[0].start()
    assert older_reads.wait(60)
    pki.files["trusted"] = OLD_CA.certificate.encode() + OTHER_CA.certificate.encode()
    threads[1].start()
    # If the newer one did not wait for the older one, it would read, and end, before it.
    if newer_reads.wait(0.2):
        threads[1].join()
    go_on.set()
    for thread in threads:
        thread.join()
    assert contexts.reloads == 2
    assert contexts.trusted_expires_ms == (NOW_MS - 30 * 86_400_000) // 1000 * 1000


def test_a_client_whose_certificate_cannot_be_read_is_refused() -> None:
    class Resumed:
        session_reused = True

        def getpeercert(self, binary_form: bool) -> bytes:
            return ssl.PEM_cert_to_DER_cert(_of_version_8(ALICE))

    connection: Any = Resumed()
    with pytest.raises(PrincipalRefused, match="version"):
        peer_certificate(HasTls(connection), NOW_MS)


def test_other_names_are_accepted_where_the_settings_allow_it() -> None:
    pki = Pki()
    contexts = pki.contexts(ssl_allow_dn_changes="true", ssl_allow_san_changes="true")
    pki.put("server", new_server(CA, Subject("renamed"), ["b2"], NOW_MS, RANDOM))
    assert contexts.reload(NOW_MS)
    assert contexts.certificate.subject == "CN=renamed"


def test_a_reload_can_bring_new_settings() -> None:
    pki = Pki()
    contexts = pki.contexts()
    assert contexts.reload(NOW_MS, pki.settings(ssl_client_auth="required"))
    with pytest.raises(ssl.SSLError):
        shake_hands(contexts.server(), pki.client())


def test_an_encrypted_key_needs_its_password() -> None:
    """Without one it is an error, and nothing asks for it on the terminal."""
    pki = Pki()
    pki.put("server", new_server(CA, BROKER, HOSTS, NOW_MS, RANDOM, key_password="open sesame"))
    shake_hands(pki.contexts(ssl_key_password="open sesame").server(), pki.client())
    for wrong in ("closed", ""):
        with pytest.raises(TlsRefused, match="must be its password") as refused:
            pki.contexts(ssl_key_password=wrong)
        assert "closed" not in str(refused.value)


def test_brokers_need_certificates_that_the_truststore_accepts() -> None:
    pki = Pki()
    pki.put("server", broker(OTHER_CA))
    pki.contexts(ssl_client_auth="required")
    with pytest.raises(TlsRefused, match="brokers could not connect to each other"):
        pki.contexts(is_inter_broker=True, ssl_client_auth="required")


def test_brokers_move_to_another_authority_in_steps() -> None:
    """Old and new must understand each other at each step."""
    pki = Pki()
    contexts = pki.contexts(is_inter_broker=True, ssl_client_auth="required")
    both = CA.certificate + "# Autorité\n" + OTHER_CA.certificate
    pki.put("server", broker(OTHER_CA))
    pki.files["trusted"] = both.encode()
    with pytest.raises(TlsRefused, match="add its CA to the truststore"):
        contexts.reload(NOW_MS)
    pki.put("server", broker())
    assert contexts.reload(NOW_MS)
    pki.put("server", broker(OTHER_CA))
    assert contexts.reload(NOW_MS)
    pki.files["trusted"] = OTHER_CA.certificate.encode()
    assert contexts.reload(NOW_MS)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(contexts.server(), pki.client(ALICE, ssl_truststore_certificates=both))


def test_a_certificate_in_the_truststore_is_trusted_itself() -> None:
    """As in Java: the authority that signed it need not be there."""
    pki = Pki()
    pki.files["trusted"] = ALICE.certificate.encode()
    server = pki.contexts(ssl_client_auth="required").server()
    shake_hands(server, pki.client(ALICE))
    bob = new_client(CA, Subject("bob"), NOW_MS, RANDOM)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, pki.client(bob))


def test_metrics_can_show_when_certificates_expire() -> None:
    contexts = Pki().contexts()
    assert contexts.expires_ms // 1000 == (NOW_MS + 365 * 86_400_000) // 1000
    trusted = contexts.trusted_expires_ms
    assert trusted is not None
    assert trusted // 1000 == (NOW_MS + 3650 * 86_400_000) // 1000


def test_no_file_descriptor_stays_open() -> None:
    pki = Pki()
    contexts = pki.contexts()
    before = open_files()
    for _ in range(3):
        pki.put("server", broker())
        assert contexts.reload(NOW_MS)
    assert open_files() <= before
