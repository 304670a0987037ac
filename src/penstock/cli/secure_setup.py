"""What `penstock up --secure` makes: certificates, the first admin, and the brokers' settings.

Everything is in DIR/security, and is kept for the next start:

    ca.pem, ca-key.pem   the authority that clients trust, and its key
    broker.pem           the key and the certificate of all brokers
    admin-password       the password of the user `admin`
    client.properties    the settings of a Java client that logs in as `admin`

Clients connect with TLS and log in with SCRAM. Brokers connect to each other through a listener of
their own, and show their certificates. The admin and the brokers may do everything.
"""

from __future__ import annotations

import asyncio
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shlex import quote
from stat import S_IMODE
from typing import Final, TypeVar

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.commits import Commits
from penstock.broker.peers.connection import PeerSecurity
from penstock.cli.cert_files import authority_of, own_names, write_file
from penstock.cli.output import CommandFailed
from penstock.metadata.users import alter_users
from penstock.net.tls import client_context
from penstock.runtime import SystemClock, SystemRandom, Threads, read_file
from penstock.security.certificates import Subject, describe, new_server
from penstock.security.client_login import PasswordLogin
from penstock.security.listener_security import parse_client_tls
from penstock.security.scram_credentials import ScramMechanism, Upsertion, password_hash
from penstock.stores.sqlite import SqliteStore

T = TypeVar("T")

ADMIN: Final = "admin"
LISTENER: Final = "SECURE"
BETWEEN_BROKERS: Final = "INTERNAL"
MECHANISM: Final = ScramMechanism.SHA_512
_MECHANISMS: Final = (ScramMechanism.SHA_512, ScramMechanism.SHA_256)
_ORGANIZATION: Final = "Penstock"
_BROKER: Final = "penstock-broker"
_ITERATIONS: Final = 4096
_RENEW_DAYS: Final = 30
"""A certificate that is valid for less than this is replaced at the start."""
_PASSWORD_BYTES: Final = 18
_SALT_BYTES: Final = 16
_ASCII_END: Final = 0x7F


@dataclass(frozen=True, slots=True)
class SecureSetup:
    """The files of a secured cluster on this machine."""

    folder: Path
    password: str = field(repr=False)

    @property
    def authority_path(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def keystore_path(self) -> Path:
        return self.folder / "broker.pem"

    @property
    def password_path(self) -> Path:
        return self.folder / "admin-password"

    @property
    def token_key_path(self) -> Path:
        """The secret key of delegation tokens."""
        return self.folder / "token-secret-key"

    @property
    def properties_path(self) -> Path:
        return self.folder / "client.properties"


def prepare(directory: str, host: str) -> SecureSetup:
    """Makes what does not exist yet. Raises `CommandFailed`."""
    folder = Path(os.path.abspath(directory), "security")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _close_to_others(folder)
        password_path = folder / "admin-password"
        _make_secret(password_path)
        setup = SecureSetup(folder, password_path.read_text("ascii").strip())
        if not setup.password:
            raise CommandFailed(f"{password_path} is empty: delete it, and start again")
        _make_secret(setup.token_key_path)
        _make_certificate(setup, host)
        write_file(setup.properties_path, java_properties(setup), secret=True)
    except OSError as error:
        raise CommandFailed(
            f"{error.filename or folder} cannot be used ({error.strerror}): choose another "
            "directory with --data"
        ) from error
    return setup


def _make_secret(path: Path) -> None:
    """Writes a new secret to a file, unless it exists."""
    if not path.exists():
        made = urlsafe_b64encode(SystemRandom().bytes(_PASSWORD_BYTES)).decode()
        write_file(path, made + "\n", secret=True)


def _close_to_others(folder: Path) -> None:
    """Makes a folder with keys and passwords accessible to its owner only."""
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise CommandFailed(
            f"{folder} belongs to another user, who could read its keys and passwords: choose "
            "another directory with --data"
        )
    if S_IMODE(status.st_mode) & 0o077:
        folder.chmod(0o700)


def _make_certificate(setup: SecureSetup, host: str) -> None:
    """Makes the certificate of the brokers, unless there is one for this host."""
    now_ms = SystemClock().wall_ms()
    authority, is_new = authority_of(setup.folder, _ORGANIZATION, now_ms)
    names = own_names()
    if host not in ("", "0.0.0.0", "::", *names):  # noqa: S104 - compared only
        names.append(host)
    if setup.keystore_path.exists() and not is_new:
        found = describe(setup.keystore_path.read_text("ascii"))[0]
        if found.days_left(now_ms) >= _RENEW_DAYS and {*names} <= {*found.names}:
            return
    subject = Subject(_BROKER, organization=_ORGANIZATION)
    issued = new_server(authority, subject, names, now_ms, SystemRandom().bytes)
    write_file(setup.keystore_path, issued.key + issued.certificate, secret=True)


def broker_settings(setup: SecureSetup, host: str, port: int) -> dict[str, str]:
    """Returns Kafka's settings of a broker that clients reach at this port."""
    shown = f"[{host}]" if ":" in host else host
    internal = f"listener.name.{BETWEEN_BROKERS.lower()}."
    external = f"listener.name.{LISTENER.lower()}."
    return {
        "listeners": f"{LISTENER}://{shown}:{port},{BETWEEN_BROKERS}://127.0.0.1:0",
        "listener.security.protocol.map": f"{LISTENER}:SASL_SSL,{BETWEEN_BROKERS}:SSL",
        "inter.broker.listener.name": BETWEEN_BROKERS,
        "ssl.keystore.location": str(setup.keystore_path),
        "ssl.truststore.location": str(setup.authority_path),
        f"{internal}ssl.client.auth": "required",
        f"{external}sasl.enabled.mechanisms": ",".join(each.sasl_name for each in _MECHANISMS),
        "delegation.token.secret.key.file": str(setup.token_key_path),
        "authorizer.class.name": "penstock",
        "super.users": f"User:{ADMIN};User:CN={_BROKER},O={_ORGANIZATION}",
    }


def add_admin(setup: SecureSetup, store_path: str) -> None:
    """Adds the admin to the cluster's users, if it is not one of them."""
    asyncio.run(_add_admin(setup, store_path))


async def _add_admin(setup: SecureSetup, store_path: str) -> None:
    salt = SystemRandom().bytes(_SALT_BYTES)
    salted = password_hash(MECHANISM, setup.password, salt, _ITERATIONS).run()
    threads = Threads(2)
    try:
        store = await SqliteStore.open(store_path, threads, SystemClock())
        try:
            cluster = ClusterView(store)
            await cluster.load()
            held = cluster.image.users.credentials.get((ADMIN, MECHANISM))
            if held is not None:
                return
            upsertion = Upsertion(ADMIN, MECHANISM, _ITERATIONS, salt, salted)
            await Commits(store, cluster).commit(lambda image: alter_users(image, [], [upsertion]))
        finally:
            await store.close()
    finally:
        threads.close()


def admin_security(setup: SecureSetup) -> PeerSecurity:
    """Returns how this process connects to the brokers, as the admin."""
    settings = parse_client_tls({"ssl.truststore.location": str(setup.authority_path)})
    login = PasswordLogin(MECHANISM.sasl_name, ADMIN, setup.password)
    context = partial(client_context, settings, read_file)
    return PeerSecurity(SystemRandom(), _Direct(), context, login)


def console_options(setup: SecureSetup) -> list[str]:
    """Returns the arguments of the web console, where users sign in with their passwords."""
    options = ["--security-protocol", "SASL_SSL", "--ssl-ca", str(setup.authority_path)]
    for mechanism in _MECHANISMS:
        options += ["--sign-in", mechanism.sasl_name]
    return options


class _Direct:
    """Runs the little work of one login at once: nothing else uses the event loop meanwhile."""

    async def run(self, work: Callable[[], T]) -> T:
        return work()


def java_properties(setup: SecureSetup) -> str:
    """Returns the settings of a Java client, as a properties file."""
    password = setup.password.replace("\\", "\\\\").replace('"', '\\"')
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM.sasl_name,
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{ADMIN}" password="{password}";'
        ),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(setup.authority_path),
    }
    return "".join(f"{name}={_property(value)}\n" for name, value in settings.items())


def _property(value: str) -> str:
    """Returns the value as a properties file has it: in ASCII, with Java's escapes."""
    utf16 = value.replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(utf16[at : at + 2], "big") for at in range(0, len(utf16), 2)]
    return "".join(chr(unit) if unit < _ASCII_END else f"\\u{unit:04x}" for unit in units)


def snippets(setup: SecureSetup, bootstrap: str) -> str:
    """Returns how clients connect, for people to copy. It names files and has no password."""
    ca, secret = quote(str(setup.authority_path)), quote(str(setup.password_path))
    return f"""\
Clients, and people in the web console, log in as user {ADMIN!r}.
The password is in {setup.password_path}

# the command line
penstock profile create local --bootstrap {bootstrap} --tls --ca {ca} \\
     --sasl scram-sha-512 --user {ADMIN} --password-file {secret}
penstock topic list --profile local

{_python_snippets(setup, bootstrap)}
# Java, and Kafka's tools
kafka-topics.sh --bootstrap-server {bootstrap} \\
     --command-config {quote(str(setup.properties_path))} --list

# kcat, with librdkafka 2.6.1 or newer (kcat -V shows it)
kcat -b {bootstrap} -X security.protocol=SASL_SSL -X ssl.ca.location={ca} \\
     -X sasl.mechanism=SCRAM-SHA-512 -X sasl.username={ADMIN} -X sasl.password="$(cat {secret})" -L
"""


def _python_snippets(setup: SecureSetup, bootstrap: str) -> str:
    ca = repr(str(setup.authority_path))
    read = f"Path({str(setup.password_path)!r}).read_text().strip()"
    return f"""\
# penstock (Python)
from pathlib import Path
from penstock import Producer
producer = Producer({bootstrap!r}, security_protocol="SASL_SSL", ssl_ca={ca},
                    sasl_mechanism="SCRAM-SHA-512", sasl_username="{ADMIN}",
                    sasl_password={read})

# confluent-kafka
from pathlib import Path
from confluent_kafka import Producer
producer = Producer({{"bootstrap.servers": {bootstrap!r}, "security.protocol": "SASL_SSL",
                     "ssl.ca.location": {ca}, "sasl.mechanism": "SCRAM-SHA-512",
                     "sasl.username": "{ADMIN}", "sasl.password": {read}}})

# kafka-python
from pathlib import Path
from kafka import KafkaProducer
producer = KafkaProducer(bootstrap_servers={bootstrap!r}, security_protocol="SASL_SSL",
                         ssl_cafile={ca}, sasl_mechanism="SCRAM-SHA-512",
                         sasl_plain_username="{ADMIN}", sasl_plain_password={read})

# aiokafka, in a coroutine
import ssl
from pathlib import Path
from aiokafka import AIOKafkaProducer
producer = AIOKafkaProducer(bootstrap_servers={bootstrap!r}, security_protocol="SASL_SSL",
                            ssl_context=ssl.create_default_context(cafile={ca}),
                            sasl_mechanism="SCRAM-SHA-512", sasl_plain_username="{ADMIN}",
                            sasl_plain_password={read})

# Spark (Python)
from pathlib import Path
orders = spark.readStream.format("penstock").options(**{{
    "kafka.bootstrap.servers": {bootstrap!r}, "kafka.security.protocol": "SASL_SSL",
    "kafka.ssl.ca": {ca}, "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.username": "{ADMIN}", "kafka.sasl.password": {read},
    "subscribe": "orders",
}}).load()
"""
