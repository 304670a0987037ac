"""The key providers: a key file, a program, and a stand-in that speaks Vault's transit API."""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.runtime import SystemRandom
from penstock.storage import key_command, vault_keys
from penstock.storage.data_keys import KeyDropped, Keyring, KeyUnavailable
from penstock.storage.key_command import KeyCommand
from penstock.storage.key_file import KeyFile, KeySet, read_keys, write_keys
from penstock.storage.key_providers import key_provider
from penstock.storage.vault_keys import VaultKeys
from penstock.testing.slowness import patient

DATA_KEY = bytes(range(32))


def make_file(path: Path, *names: str) -> KeySet:
    keys = KeySet()
    for name in names:
        keys.add(name, os.urandom(32), 1)
    write_keys(str(path), keys)
    return keys


class TestKeyFile:
    def test_a_data_key_comes_back(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.json"
        make_file(path, "orders-key", "other")
        provider = KeyFile(str(path), SystemRandom())
        token = provider.wrap("orders-key", DATA_KEY)
        assert DATA_KEY not in token
        assert provider.unwrap("orders-key", token) == DATA_KEY
        assert provider.wrap("orders-key", DATA_KEY) != token
        with pytest.raises(KeyUnavailable, match="not the one"):
            provider.unwrap("other", token)

    def test_only_its_owner_may_read_it(self, tmp_path: Path) -> None:
        path = tmp_path / "my keys.json"
        make_file(path, "k")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o640)
        with pytest.raises(KeyUnavailable, match=r"chmod 600 '.*my keys.json'$"):
            KeyFile(str(path), SystemRandom()).wrap("k", DATA_KEY)

    def test_a_rotation_is_noticed_and_old_tokens_stay_valid(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.json"
        keys = make_file(path, "k")
        provider = KeyFile(str(path), SystemRandom())
        old = provider.wrap("k", DATA_KEY)
        keys.add("k", os.urandom(32), 2)
        write_keys(str(path), keys)
        new = provider.wrap("k", DATA_KEY)
        assert (old[:4], new[:4]) == (b"\0\0\0\1", b"\0\0\0\2")
        assert provider.unwrap("k", old) == provider.unwrap("k", new) == DATA_KEY

    def test_a_dropped_key_is_gone_for_good(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.json"
        keys = make_file(path, "k", "kept")
        provider = KeyFile(str(path), SystemRandom())
        token = provider.wrap("k", DATA_KEY)
        del keys.keys["k"]
        keys.dropped["k"] = 5
        write_keys(str(path), keys)
        with pytest.raises(KeyDropped, match="was dropped"):
            provider.unwrap("k", token)
        assert read_keys(str(path)).dropped == {"k": 5}
        provider.wrap("kept", DATA_KEY)

    def test_a_missing_or_damaged_file_is_a_clear_error_without_its_content(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "keys.json"
        provider = KeyFile(str(path), SystemRandom())
        with pytest.raises(KeyUnavailable, match="cannot be read") as missing:
            provider.wrap("k", DATA_KEY)
        assert not isinstance(missing.value, KeyDropped)
        make_file(path, "k")
        text = path.read_text()
        path.write_text(text[: len(text) // 2])
        with pytest.raises(KeyUnavailable, match="damaged") as damaged:
            provider.wrap("k", DATA_KEY)
        assert not isinstance(damaged.value, KeyDropped)
        assert damaged.value.__cause__ is None

    def test_nothing_shows_a_secret(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.json"
        keys = make_file(path, "k")
        provider = KeyFile(str(path), SystemRandom())
        secret = keys.keys["k"][0].secret
        keyring = Keyring(provider, SystemRandom())
        made = keyring.new_key("k")
        for shown in (repr(keys), repr(provider), repr(keyring), repr(made)):
            assert repr(secret)[2:12] not in shown
            assert base64.b64encode(secret).decode() not in shown


PROGRAM = """#!{python}
import base64, sys
verb, name = sys.argv[1:]
data = base64.b64decode(sys.stdin.read())
if name == "gone":
    sys.exit(3)
if name == "broken":
    sys.exit("the service is down")
if name == "odd":
    print("%%%")
    sys.exit(0)
print(base64.b64encode(bytes(byte ^ 0x5A for byte in data)).decode())
"""


class TestKeyCommand:
    @pytest.fixture(autouse=True)
    def time_to_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A busy machine starts the program late."""
        monkeypatch.setattr(key_command, "TIMEOUT_S", patient(60.0))

    @pytest.fixture
    def provider(self, tmp_path: Path) -> KeyCommand:
        program = tmp_path / "keys"
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(0o700)
        return KeyCommand(str(program))

    def test_a_data_key_comes_back(self, provider: KeyCommand) -> None:
        token = provider.wrap("k", DATA_KEY)
        assert token != DATA_KEY
        assert provider.unwrap("k", token) == DATA_KEY

    @pytest.mark.parametrize(
        ("name", "kind", "message"),
        [
            ("gone", KeyDropped, "no such key"),
            ("broken", KeyUnavailable, "the service is down"),
            ("odd", KeyUnavailable, "base64"),
        ],
    )
    def test_errors_are_told_apart(
        self, provider: KeyCommand, name: str, kind: type[KeyUnavailable], message: str
    ) -> None:
        with pytest.raises(KeyUnavailable, match=message) as raised:
            provider.unwrap(name, b"token")
        assert type(raised.value) is kind

    def test_a_missing_program_is_a_clear_error(self, tmp_path: Path) -> None:
        with pytest.raises(KeyUnavailable, match="cannot be run"):
            KeyCommand(str(tmp_path / "absent")).wrap("k", DATA_KEY)


class TransitServer(ThreadingHTTPServer):
    """Answers as Vault's transit secrets engine does."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Transit)
        self.keys: dict[str, list[AESGCM]] = {"orders-key": [AESGCM(os.urandom(32))]}
        self.status = 200
        self.redirect = ""
        self.paths: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/transit"


class _Transit(BaseHTTPRequestHandler):
    server: TransitServer

    def log_message(self, *args: object) -> None:
        """Logs nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, version, mount, verb, name = self.path.split("/")
        self.server.paths.append(self.path)
        if self.server.redirect:
            self.send_response(307)
            self.send_header("Location", self.server.redirect)
            self.end_headers()
        elif self.server.status != 200:
            self._answer(self.server.status, {"errors": ["Vault is sealed"]})
        elif self.headers["X-Vault-Token"] != "a-token" or (version, mount) != ("v1", "transit"):
            self._answer(403, {"errors": ["permission denied"]})
        elif name not in self.server.keys:
            self._answer(400, {"errors": ["encryption key not found"]})
        elif verb == "encrypt":
            versions = self.server.keys[name]
            nonce = os.urandom(12)
            data = base64.b64decode(body["plaintext"])
            sealed = base64.b64encode(nonce + versions[-1].encrypt(nonce, data, None)).decode()
            self._answer(200, {"data": {"ciphertext": f"vault:v{len(versions)}:{sealed}"}})
        else:
            _, number, sealed = body["ciphertext"].split(":")
            raw = base64.b64decode(sealed)
            key = self.server.keys[name][int(number[1:]) - 1]
            plain = key.decrypt(raw[:12], raw[12:], None)
            self._answer(200, {"data": {"plaintext": base64.b64encode(plain).decode()}})

    def _answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class TestVaultKeys:
    @pytest.fixture
    def vault(self) -> Iterator[TransitServer]:
        with TransitServer() as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield server
            server.shutdown()
            thread.join()

    @pytest.fixture(autouse=True)
    def token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VAULT_TOKEN", "a-token")
        monkeypatch.setattr(vault_keys, "TIMEOUT_S", patient(60.0))

    def test_a_data_key_comes_back_after_a_rotation_too(self, vault: TransitServer) -> None:
        provider = VaultKeys(vault.address)
        old = provider.wrap("orders-key", DATA_KEY)
        assert old.startswith(b"vault:v1:")
        vault.keys["orders-key"].append(AESGCM(os.urandom(32)))
        new = provider.wrap("orders-key", DATA_KEY)
        assert new.startswith(b"vault:v2:")
        assert provider.unwrap("orders-key", old) == DATA_KEY
        assert provider.unwrap("orders-key", new) == DATA_KEY
        assert vault.paths[0] == "/v1/transit/encrypt/orders-key"

    def test_a_deleted_key_is_not_an_unreachable_vault(self, vault: TransitServer) -> None:
        provider = VaultKeys(vault.address)
        token = provider.wrap("orders-key", DATA_KEY)
        vault.status = 503
        with pytest.raises(KeyUnavailable, match="sealed") as sealed:
            provider.unwrap("orders-key", token)
        assert not isinstance(sealed.value, KeyDropped)
        vault.status = 200
        del vault.keys["orders-key"]
        with pytest.raises(KeyDropped, match="does not exist"):
            provider.unwrap("orders-key", token)

    def test_the_token_is_in_no_error_and_follows_no_redirect(
        self, vault: TransitServer, tmp_path: Path
    ) -> None:
        file = tmp_path / "token"
        file.write_text("wrong-token\n")
        provider = VaultKeys(vault.address, token_file=str(file))
        with pytest.raises(KeyUnavailable, match="refused") as refused:
            provider.wrap("orders-key", DATA_KEY)
        assert "wrong-token" not in str(refused.value)
        file.write_text("a-token\n")
        assert provider.wrap("orders-key", DATA_KEY)
        vault.redirect = vault.address + "/elsewhere"
        vault.paths.clear()
        with pytest.raises(KeyUnavailable, match="307"):
            provider.wrap("orders-key", DATA_KEY)
        assert len(vault.paths) == 1

    def test_without_a_token_nothing_is_sent(
        self, vault: TransitServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("VAULT_TOKEN")
        with pytest.raises(KeyUnavailable, match="VAULT_TOKEN"):
            VaultKeys(vault.address).wrap("orders-key", DATA_KEY)
        assert not vault.paths

    def test_nobody_there_is_a_clear_error(self, vault: TransitServer) -> None:
        address = vault.address
        vault.socket.close()
        with pytest.raises(KeyUnavailable, match="cannot be reached"):
            VaultKeys(address).wrap("orders-key", DATA_KEY)

    def test_data_keys_are_not_sent_in_plain_text(self) -> None:
        with pytest.raises(ValueError, match="https"):
            VaultKeys("http://vault.example.com:8200/transit")


def test_the_address_names_the_provider(tmp_path: Path) -> None:
    random = SystemRandom()
    assert key_provider("", random) is None
    assert isinstance(key_provider(f"file:{tmp_path}/k", random), KeyFile)
    assert isinstance(key_provider("command:/bin/keys", random), KeyCommand)
    assert isinstance(key_provider("vault:https://vault:8200/transit", random), VaultKeys)
    for wrong in ("nowhere", "file:", "s3:bucket", "/etc/keys.json"):
        with pytest.raises(ValueError, match=r"encryption\.key\.provider"):
            key_provider(wrong, random)
