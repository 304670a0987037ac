"""Real etcd servers for tests, on free loopback ports. They can be killed, frozen and restarted."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from aetcd import rpc

from penstock.ports import MetadataStore
from penstock.runtime import SystemClock, SystemRandom
from penstock.stores.errors import StoreUnavailable
from penstock.stores.etcd import EtcdStore
from penstock.stores.etcd_address import EtcdAddress
from penstock.stores.etcd_members import EtcdConfig
from penstock.testing.ports import free_port
from penstock.testing.slowness import patient

from .store_bench import StoreBench, put

START_TIMEOUT_S = 150.0
PATIENT = EtcdConfig(request_timeout_s=120.0, attempt_timeout_s=20.0)
"""For calls that must succeed however busy the machine is."""


def etcd_binary() -> str:
    found = shutil.which("etcd")
    if found is None:
        pytest.skip("etcd is not installed: `make tools` as root installs Debian's etcd-server")
    return found


class EtcdServer:
    """One member: a process, its ports and its data."""

    def __init__(self, name: str, directory: Path, options: Sequence[str] = ()) -> None:
        self.name = name
        self.directory = directory
        self.options = tuple(options)
        self.scheme = "https" if any(each.startswith("--cert-file") for each in options) else "http"
        random = SystemRandom()
        self.client_port, self.peer_port = free_port(random), free_port(random)
        self.endpoint = f"127.0.0.1:{self.client_port}"
        self.peer_url = f"http://127.0.0.1:{self.peer_port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, members: Sequence[EtcdServer]) -> None:
        client_url = f"{self.scheme}://{self.endpoint}"
        # Appended, so that a restart continues the log.
        with open(self.directory / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    etcd_binary(),
                    f"--name={self.name}",
                    f"--data-dir={self.directory / self.name}",
                    f"--listen-client-urls={client_url}",
                    f"--advertise-client-urls={client_url}",
                    f"--listen-peer-urls={self.peer_url}",
                    f"--initial-advertise-peer-urls={self.peer_url}",
                    f"--initial-cluster={','.join(f'{m.name}={m.peer_url}' for m in members)}",
                    "--logger=zap",
                    "--log-level=warn",
                    *self.options,
                ],
                stdout=log,
                stderr=log,
            )

    def freeze(self) -> None:
        """Stops the process, and returns when all of its threads stand still."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=120)
            self.process = None


class EtcdCluster:
    def __init__(self, size: int, options: Sequence[str]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-etcd-"))
        self.members = [EtcdServer(f"m{i}", self.directory, options) for i in range(size)]

    def address(self, namespace: str = "", *, first: int = 0) -> EtcdAddress:
        """Returns the address with member `first` at the start of the list, where handles begin."""
        members = self.members[first:] + self.members[:first]
        return EtcdAddress(tuple(member.endpoint for member in members), namespace)

    def start(self) -> None:
        for member in self.members:
            if member.process is None:
                member.start(self.members)
        asyncio.run(self.wait_healthy())

    async def wait_healthy(self) -> None:
        """Waits until every member answers and there is a leader."""
        async with asyncio.timeout(patient(START_TIMEOUT_S)):
            for member in self.members:
                while True:
                    try:
                        store = await open_store(EtcdAddress((member.endpoint,)), PATIENT)
                    except StoreUnavailable:
                        continue
                    await store.close()
                    break

    async def leader(self) -> EtcdServer:
        """Returns the present leader, according to the members themselves."""
        async with asyncio.timeout(patient(START_TIMEOUT_S)):
            while True:
                for member in self.members:
                    status = await _status(member)
                    if status is not None and status.leader == status.header.member_id:
                        return member
                await asyncio.sleep(0.05)

    def heal(self) -> None:
        """Makes every member run again."""
        for member in self.members:
            member.thaw()
        self.start()

    def close(self) -> None:
        for member in self.members:
            member.kill()
        shutil.rmtree(self.directory)


async def open_store(address: EtcdAddress, config: EtcdConfig = PATIENT) -> EtcdStore:
    return await EtcdStore.open(address, SystemClock(), First(), config)


async def compact(endpoint: str, revision: int) -> None:
    async with rpc.insecure_channel(endpoint) as channel:
        request = rpc.CompactionRequest(revision=revision, physical=True)
        await rpc.KVStub(channel).Compact(request, timeout=120)


async def revoke_all_leases(endpoint: str) -> None:
    async with rpc.insecure_channel(endpoint) as channel:
        stub = rpc.LeaseStub(channel)
        for lease in (await stub.LeaseLeases(rpc.LeaseLeasesRequest(), timeout=120)).leases:
            try:
                await stub.LeaseRevoke(rpc.LeaseRevokeRequest(ID=lease.ID), timeout=120)
            except rpc.AioRpcError as error:
                # It may have expired meanwhile.
                if "lease not found" not in (error.details() or ""):
                    raise


class First(SystemRandom):
    """Begins with the first member of the list."""

    def below(self, _bound: int) -> int:
        return 0


class EtcdBench(StoreBench):
    """A separate namespace in an etcd that many tests share."""

    made = 0

    def __init__(self, cluster: EtcdCluster) -> None:
        self.cluster = cluster
        EtcdBench.made += 1
        self.second_s = patient(2.0)
        self.namespace = f"/bench-{EtcdBench.made}"

    async def open(self) -> EtcdStore:
        return await open_store(self.cluster.address(self.namespace))

    async def advance(self, seconds: float) -> None:
        """Waits in real time: etcd counts it, and looks for expired leases twice a second."""
        await asyncio.sleep(seconds)

    async def forget_history(self, store: MetadataStore) -> None:
        await compact(self.cluster.members[0].endpoint, await put(store, "/forget", b""))

    def fresh(self) -> EtcdBench:
        return EtcdBench(self.cluster)

    def close(self) -> None:
        asyncio.run(revoke_all_leases(self.cluster.members[0].endpoint))


async def _status(member: EtcdServer) -> rpc.StatusResponse | None:
    async with rpc.insecure_channel(member.endpoint) as channel:
        try:
            return await rpc.MaintenanceStub(channel).Status(
                rpc.StatusRequest(), timeout=patient(1.0)
            )
        except rpc.AioRpcError:
            return None
