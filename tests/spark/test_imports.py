"""Spark starts a Python process for each step of a query. What such a process imports delays the
query, so it imports nothing that its step does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.testing.slowness import patient

SECURITY = {
    "cryptography",
    "penstock.client.connection_login",
    "penstock.net.tls",
    "penstock.security.client_login",
    "penstock.security.listener_security",
    "penstock.security.principal_rules",
    "penstock.security.scram",
}
CONSUMER = {"penstock.client.consumer", "penstock.client.membership.member"}
PRODUCER = {"penstock.client.producing.producer"}
ADMIN = {"penstock.client.admin.admin"}
REST = {"cattrs", "penstock.spark.deployments", "penstock.sim"}

PLANS = "import penstock.spark.stream_reader; import penstock.client.blocking.admin"
"""A process that plans the batches of a stream, and the client that it opens."""
READS = "import penstock.spark.reading; import penstock.client.blocking.consumer"
WRITES = "import penstock.spark.once.writers; import penstock.client.blocking.producer"


def loaded(code: str) -> set[str]:
    """Returns the modules that are loaded after this code."""
    ended = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=patient(300),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.split())


@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        pytest.param(
            "import pyspark_penstock", ADMIN | CONSUMER | PRODUCER | {"asyncio"}, id="any"
        ),
        pytest.param(
            PLANS, SECURITY - {"penstock.security.scram"} | CONSUMER | PRODUCER, id="plans"
        ),
        pytest.param(READS, SECURITY | ADMIN | PRODUCER, id="reads"),
        pytest.param(WRITES, SECURITY | ADMIN | CONSUMER, id="writes"),
    ],
)
def test_a_python_process_of_spark_imports_only_what_its_step_needs(
    code: str, unneeded: set[str]
) -> None:
    assert not loaded(code) & (unneeded | REST)


def test_a_client_with_tls_and_a_login_loads_both() -> None:
    """Otherwise the test above would pass although the names of modules have changed."""
    options = (
        "import penstock, penstock.net.tls, penstock.client.connection_login\n"
        "penstock.Admin('localhost:1', security_protocol='SASL_SSL', sasl_mechanism='PLAIN', "
        "sasl_username='ann', sasl_password='secret').options\n"
        "import cattrs, penstock.spark.deployments, penstock.sim, penstock.client.consumer\n"
        "import penstock.client.producing.producer"
    )
    known = loaded(options)
    assert known >= SECURITY | CONSUMER | PRODUCER | ADMIN | REST
