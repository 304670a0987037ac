"""Certificates for the fake broker and its clients."""

from __future__ import annotations

import random
import ssl
import tempfile
import time

from penstock.security.certificates import Issued, Subject, new_authority, new_client, new_server

NOW_MS = time.time_ns() // 1_000_000
DAY_MS = 86_400_000
_RANDOM = random.Random(18).randbytes
CA = new_authority(Subject("authority"), NOW_MS - 60 * DAY_MS, _RANDOM)
OTHER_CA = new_authority(Subject("other authority"), NOW_MS, _RANDOM)
ALICE = new_client(CA, Subject("alice"), NOW_MS, _RANDOM)
SECRET_ALICE = new_client(CA, Subject("alice"), NOW_MS, _RANDOM, key_password="milk")
STRANGER = new_client(OTHER_CA, Subject("stranger"), NOW_MS, _RANDOM)
EXPIRED_ALICE = new_client(CA, Subject("alice"), NOW_MS - 30 * DAY_MS, _RANDOM, days=2)


def server(hosts: tuple[str, ...] = ("127.0.0.1",)) -> Issued:
    return new_server(CA, Subject("broker"), hosts, NOW_MS, _RANDOM)


def expired_server() -> Issued:
    return new_server(CA, Subject("broker"), ("127.0.0.1",), NOW_MS - 30 * DAY_MS, _RANDOM, days=2)


def context(issued: Issued | None = None, *, asks: bool = False) -> ssl.SSLContext:
    """Returns the context of a broker. With `asks`, clients need a certificate."""
    issued = issued or server()
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(issued.certificate + issued.key)
        file.flush()
        made.load_cert_chain(file.name)
    if asks:
        made.load_verify_locations(cadata=CA.certificate)
        made.verify_mode = ssl.CERT_REQUIRED
    return made
