"""The users of a real etcd: what an operator does with etcdctl."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
from aetcd import rpc

from penstock.stores.etcd_address import EtcdAddress

ROOT, ROOT_PASSWORD = "root", "root-secret"
USER, PASSWORD = "penstock", "first-secret"
NAMESPACE = "/prod"
TIMEOUT_S = 120.0


def options(address: EtcdAddress) -> str:
    """Returns the address with its user and password file, as in a config file."""
    return f"{address}?user={address.user}&password_file={address.password_file}"


def with_user(address: EtcdAddress, folder: Path, password: str = PASSWORD) -> EtcdAddress:
    """Returns the address with the user, whose password is in a file in the folder."""
    path = folder / "etcd-password"
    path.write_text(f"{password}\n")
    return replace(address, user=USER, password_file=str(path))


class Users:
    """Changes the users of an etcd, as root once authentication is enabled."""

    def __init__(self, endpoint: str, ca: Path | None = None) -> None:
        self._endpoint = endpoint
        self._ca = ca
        """The authority that signed the certificate of etcd. None if connections use no TLS."""
        self._is_enabled = False

    async def call(self, method: str, request: Any) -> Any:
        while True:
            try:
                return await self._try(method, request)
            except grpc.aio.AioRpcError as error:
                # The token may expire before it is used: some tests let tokens live for seconds.
                if "invalid auth token" not in (error.details() or ""):
                    raise

    async def _try(self, method: str, request: Any) -> Any:
        async with self._channel() as channel:
            stub = rpc.AuthStub(channel)
            metadata: tuple[tuple[str, str], ...] = ()
            if self._is_enabled:
                login = rpc.AuthenticateRequest(name=ROOT, password=ROOT_PASSWORD)
                answer = await stub.Authenticate(login, timeout=TIMEOUT_S)
                metadata = (("token", answer.token),)
            call = getattr(stub, method)
            # etcd may still be starting.
            return await call(request, timeout=TIMEOUT_S, metadata=metadata, wait_for_ready=True)

    def _channel(self) -> grpc.aio.Channel:
        if self._ca is None:
            return grpc.aio.insecure_channel(self._endpoint)
        credentials = grpc.ssl_channel_credentials(self._ca.read_bytes())
        return grpc.aio.secure_channel(self._endpoint, credentials)

    async def create(self) -> None:
        """Creates root, and the user with a role of the same name that has no right yet."""
        for name, password in ((ROOT, ROOT_PASSWORD), (USER, PASSWORD)):
            await self.call("UserAdd", rpc.AuthUserAddRequest(name=name, password=password))
            await self.call("RoleAdd", rpc.AuthRoleAddRequest(name=name))
            await self.call("UserGrantRole", rpc.AuthUserGrantRoleRequest(user=name, role=name))

    async def grant(self, namespace: str = NAMESPACE, *, may_write: bool = True) -> None:
        """Grants the user's role the keys below the namespace."""
        kinds = rpc.Permission
        permission = kinds(
            permType=kinds.READWRITE if may_write else kinds.READ,
            key=f"{namespace}/".encode(),
            range_end=f"{namespace}0".encode(),
        )
        request = rpc.AuthRoleGrantPermissionRequest(name=USER, perm=permission)
        await self.call("RoleGrantPermission", request)

    async def enable(self) -> None:
        await self.call("AuthEnable", rpc.AuthEnableRequest())
        self._is_enabled = True

    async def change_password(self, password: str) -> None:
        request = rpc.AuthUserChangePasswordRequest(name=USER, password=password)
        await self.call("UserChangePassword", request)

    async def secure(self) -> None:
        """Does all that `docs/OPERATIONS.md` asks for."""
        await self.create()
        await self.grant()
        await self.enable()
