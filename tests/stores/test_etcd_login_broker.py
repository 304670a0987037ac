"""Brokers that log in to etcd with a user and a password."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from penstock import Admin, BrokerError, Consumer, Producer
from penstock.testing.slowness import patient

from .broker_processes import PATIENCE_S, PROGRAM, broker, topics_of, write_config
from .etcd_server import EtcdCluster
from .etcd_users import NAMESPACE, PASSWORD, Users, options, with_user


@pytest.fixture
def etcd() -> Iterator[EtcdCluster]:
    """An etcd that authenticates, and whose tokens expire after three seconds without a request."""
    options = ["--heartbeat-interval=10", "--election-timeout=100"]
    cluster = EtcdCluster(1, [*options, "--bcrypt-cost=4", "--auth-token-ttl=3"])
    try:
        cluster.start()
        asyncio.run(Users(cluster.members[0].endpoint).create())
        yield cluster
    finally:
        cluster.close()


def users_of(etcd: EtcdCluster) -> Users:
    return Users(etcd.members[0].endpoint)


async def secure(users: Users) -> None:
    await users.grant()
    await users.enable()


def address(etcd: EtcdCluster, folder: Path, password: str = PASSWORD) -> str:
    return options(with_user(etcd.address(NAMESPACE), folder, password))


def error_of(config: Path) -> str:
    """Returns what a broker prints that cannot start."""
    ended = subprocess.run(
        [*PROGRAM, "broker", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=patient(PATIENCE_S),
        check=False,
        env={**os.environ, "COLUMNS": "600"},
    )
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_a_cluster_of_brokers_works_with_a_user(etcd: EtcdCluster, tmp_path: Path) -> None:
    """With tokens that expire all the time. Another broker takes over from the controller."""
    asyncio.run(secure(users_of(etcd)))
    store = address(etcd, tmp_path)
    configs = [write_config(tmp_path / str(each), store, each) for each in range(3)]
    with ExitStack() as stack:
        running = [stack.enter_context(broker(config)) for config in configs]
        bootstrap = ",".join(each for each, _ in running)
        with Admin(bootstrap) as admin:
            admin.create_topic("orders", 3, replication_factor=3)
            controller = admin.describe_cluster().controller_id
        with Producer(bootstrap) as producer:
            for number in range(30):
                producer.send("orders", b"%d" % number, partition=number % 3).result(PATIENCE_S)
            running[controller][1].kill()
            for number in range(30, 60):
                producer.send("orders", b"%d" % number, partition=number % 3).result(PATIENCE_S)
        with Consumer(
            bootstrap, topics=["orders"], group_id=None, auto_offset_reset="earliest"
        ) as consumer:
            assert sorted(int(next(consumer).value or b"") for _ in range(60)) == list(range(60))


def test_a_broker_continues_after_its_password_was_changed(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    """First in etcd, then in the file. Meanwhile the broker serves, and logs what to do. No log
    line contains a password."""
    users = users_of(etcd)
    asyncio.run(secure(users))
    config = write_config(tmp_path / "broker", address(etcd, tmp_path))
    with broker(config) as (bootstrap, process), Producer(bootstrap) as producer:
        with Admin(bootstrap) as admin:
            admin.create_topic("orders", 1)
        assert producer.send("orders", b"one").result(PATIENCE_S).offset == 0
        asyncio.run(users.change_password("second-secret"))
        with pytest.raises(BrokerError), Admin(bootstrap, default_api_timeout_ms=5000) as admin:
            admin.create_topic("refused", 1)
        assert process.stderr is not None
        for line in process.stderr:
            assert "secret" not in line
            if "cannot log in to etcd" in line:
                assert "etcd-password has the password of user 'penstock'" in line
                break
        else:
            raise AssertionError("it logs nothing")
        assert producer.send("orders", b"meanwhile").result(PATIENCE_S).offset == 1
        assert process.poll() is None
        (tmp_path / "etcd-password").write_text("second-secret\n")
        for _ in range(200):
            with suppress(BrokerError), Admin(bootstrap) as admin:
                admin.create_topic("later", 1)
            if "later" in topics_of(bootstrap):
                break
        assert topics_of(bootstrap) == {"orders": 1, "later": 1}
        assert producer.send("orders", b"two").result(PATIENCE_S).offset == 2


def test_a_broker_with_a_wrong_password_does_not_start(etcd: EtcdCluster, tmp_path: Path) -> None:
    """Nor without the right to write, nor without a user. The error says what to do."""
    users = users_of(etcd)

    async def only_read() -> None:
        await users.grant(may_write=False)
        await users.enable()

    asyncio.run(only_read())
    wrong = write_config(tmp_path / "wrong", address(etcd, tmp_path, "wrong-secret"))
    error = error_of(wrong)
    assert f"check that the file {tmp_path}/etcd-password has the password" in error
    assert "wrong-secret" not in error
    powerless = write_config(tmp_path / "powerless", address(etcd, tmp_path))
    assert "--prefix=true readwrite /prod/" in error_of(powerless)
    nobody = write_config(tmp_path / "nobody", str(etcd.address(NAMESPACE)))
    assert "give the store's address a user and a password_file" in error_of(nobody)
    inside = write_config(tmp_path / "inside", f"{etcd.address(NAMESPACE)}?user=a&password=secret")
    error = error_of(inside)
    assert "write ?user=NAME&password_file=FILE" in error
    assert "secret" not in error
