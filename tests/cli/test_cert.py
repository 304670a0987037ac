"""Tests `penstock cert`: the certificates that it makes are used in real handshakes."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Runner
from penstock.runtime import SystemClock, SystemRandom
from penstock.security.certificates import Subject, new_authority, new_server

DAY_MS = 86_400_000


def described(path: Path) -> Any:
    """Returns what OpenSSL itself says."""
    shown = subprocess.run(
        ["openssl", "x509", "-in", str(path), "-noout", "-text"],
        check=True,
        capture_output=True,
        text=True,
    )
    return shown.stdout


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> Any:
    """Connects both in memory. Returns the client's certificate as the server sees it."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=name)
    done: set[str] = set()
    for _ in range(10):
        for side, each in (("client", theirs), ("server", ours)):
            try:
                each.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
        if len(done) == 2:
            return ours.getpeercert()
    raise AssertionError("the handshake did not end")


def server_context(folder: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}-key.pem")
    context.load_verify_locations(folder / "ca.pem")
    return context


def test_a_broker_and_a_user_can_connect_with_new_certificates(
    penstock: Runner, tmp_path: Path
) -> None:
    folder = tmp_path / "certs"
    for arguments in ((), ("--user", "alice"), ("--host", "kafka-1", "--host", "10.0.0.11")):
        ended = penstock("cert", "new", str(folder), *arguments)
        assert (ended.code, ended.err) == (0, "")
    server, client = server_context(folder, "localhost"), ssl.create_default_context()
    server.verify_mode = ssl.CERT_REQUIRED
    client.load_verify_locations(folder / "ca.pem")
    client.load_cert_chain(folder / "alice.pem", folder / "alice-key.pem")
    peer = handshake(server, client, "localhost")
    assert (("commonName", "alice"),) in peer["subject"]
    handshake(server, client, "127.0.0.1")
    handshake(server_context(folder, "kafka-1"), client, "10.0.0.11")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(folder, "kafka-1"), client, "kafka-2")


def test_key_files_are_readable_by_their_owner_only(penstock: Runner, tmp_path: Path) -> None:
    penstock("cert", "new", str(tmp_path))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {
        "ca.pem": 0o644,
        "ca-key.pem": 0o600,
        "localhost.pem": 0o644,
        "localhost-key.pem": 0o600,
    }


def test_existing_files_are_kept_without_force(penstock: Runner, tmp_path: Path) -> None:
    penstock("cert", "new", str(tmp_path))
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    again = penstock("cert", "new", str(tmp_path))
    assert again.code == 2
    assert "exists: use --force to replace it" in again.err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    assert penstock("cert", "new", str(tmp_path), "--force").code == 0
    after = {path.name: path.read_text() for path in tmp_path.iterdir()}
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"localhost.pem", "localhost-key.pem"}


def test_half_an_authority_is_an_error(penstock: Runner, tmp_path: Path) -> None:
    """A new authority would make all certificates invalid that the old one signed."""
    penstock("cert", "new", str(tmp_path))
    (tmp_path / "ca-key.pem").unlink()
    ended = penstock("cert", "new", str(tmp_path), "--user", "bob")
    assert ended.code == 2
    assert "ca-key.pem does not: restore it" in ended.err
    assert not (tmp_path / "bob.pem").exists()


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".hidden", "x" * 200])
def test_a_name_that_is_no_file_name_is_refused(
    penstock: Runner, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "certs"
    ended = penstock("cert", "new", str(folder), "--host", name)
    assert ended.code == 2
    assert "cannot be the name of a file" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["certs"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ca", "'ca' is reserved for the files of the CA: use another name"),
        ("CA", "'CA' is reserved for the files of the CA: use another name"),
        ("ca-key", "'ca-key' is reserved for the files of the CA: use another name"),
        ("bob-key", "'bob-key' would have the file of the key of 'bob': use another name"),
    ],
)
def test_a_name_whose_files_are_those_of_another_certificate_is_refused(
    penstock: Runner, tmp_path: Path, name: str, reason: str
) -> None:
    """`ca` would replace the authority, and `bob-key` the key of bob."""
    penstock("cert", "new", str(tmp_path), "--user", "bob")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    ended = penstock("cert", "new", str(tmp_path), "--user", name, "--force")
    assert ended.code == 2
    assert reason in ended.err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_a_key_without_its_certificate_is_kept(penstock: Runner, tmp_path: Path) -> None:
    key = tmp_path / "alice-key.pem"
    key.write_text("the key of alice")
    ended = penstock("cert", "new", str(tmp_path), "--user", "alice")
    assert ended.code == 2
    assert key.read_text() == "the key of alice"


def test_host_and_user_together_are_refused(penstock: Runner, tmp_path: Path) -> None:
    ended = penstock("cert", "new", str(tmp_path), "--host", "a", "--user", "b")
    assert ended.code == 2
    assert "give one of them" in ended.err


def test_show_says_what_openssl_says(penstock: Runner, tmp_path: Path) -> None:
    penstock("cert", "new", str(tmp_path), "--host", "kafka-1", "--host", "10.0.0.11")
    path = tmp_path / "kafka-1.pem"
    (shown,) = penstock("cert", "show", str(path), "--json").json
    assert shown["subject"] == "CN=kafka-1,O=Penstock"
    assert shown["names"] == ["kafka-1", "10.0.0.11"]
    assert shown["days_left"] in (364, 365)
    text = described(path)
    assert "DNS:kafka-1, IP Address:10.0.0.11" in text
    assert "prime256v1" in text
    people = penstock("cert", "show", str(path)).out
    assert "CN=kafka-1,O=Penstock" in people
    assert "days left" in people


def test_expiring_lists_what_expires_soon_in_a_directory(penstock: Runner, tmp_path: Path) -> None:
    penstock("cert", "new", str(tmp_path), "--user", "alice", "--days", "10")
    penstock("cert", "new", str(tmp_path), "--user", "bob", "--days", "90")
    ended = penstock("cert", "expiring", str(tmp_path), "--json")
    assert ended.code == 1
    assert [Path(each["file"]).name for each in ended.json] == ["alice.pem"]
    people = penstock("cert", "expiring", str(tmp_path))
    assert people.code == 1
    assert "CN=alice" in people.out
    calm = penstock("cert", "expiring", str(tmp_path), "--days", "5")
    assert (calm.code, calm.out) == (0, "none of 3 certificates expires within 5 days\n")


def test_an_expired_certificate_is_listed_and_shown_as_expired(
    penstock: Runner, tmp_path: Path
) -> None:
    then_ms, random_bytes = SystemClock().wall_ms() - 40 * DAY_MS, SystemRandom().bytes
    authority = new_authority(Subject("old"), then_ms, random_bytes)
    issued = new_server(authority, Subject("old"), ["localhost"], then_ms, random_bytes, days=30)
    path = tmp_path / "old.pem"
    path.write_text(issued.certificate)
    assert penstock("cert", "expiring", str(path), "--days", "0").code == 1
    assert "expired" in penstock("cert", "show", str(path)).out
    (shown,) = json.loads(penstock("cert", "show", str(path), "--json").out)
    assert not shown["is_valid"]
    assert shown["days_left"] < 0


@pytest.mark.parametrize("content", ["", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_file_without_a_certificate_is_an_error_in_one_line(
    penstock: Runner, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "bad.pem"
    path.write_text(content)
    for command in ("show", "expiring"):
        ended = penstock("cert", command, str(path))
        assert ended.code == 2
        assert "bad.pem" in ended.err
        assert ended.err.count("\n") == 1
    assert penstock("cert", "expiring", str(tmp_path / "none")).code == 2


def test_the_default_names_include_this_machine(penstock: Runner, tmp_path: Path) -> None:
    penstock("cert", "new", str(tmp_path))
    (shown,) = penstock("cert", "show", str(tmp_path / "localhost.pem"), "--json").json
    assert {"localhost", "127.0.0.1", "::1", socket.gethostname()} <= set(shown["names"])
