"""Interprets the errors of kazoo and ZooKeeper.

Two questions matter: is it worth asking again, and what should the operator do. Errors that answer
a request (a node is missing, a version differs) are not for this module.
"""

from __future__ import annotations

import os
from typing import Final

from kazoo import exceptions
from kazoo.handlers.threading import KazooTimeoutError

from penstock.runtime import read_file
from penstock.stores.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from penstock.stores.zk_address import ZooKeeperAddress

PASSWORD_BYTES_MAX: Final = 4096
_PASSING: Final = (
    exceptions.ConnectionLoss,
    # Also when the client is closed. Then the store is, or it makes a new client.
    exceptions.SessionExpiredError,
    exceptions.SessionMovedError,
    exceptions.OperationTimeoutError,
    exceptions.RequestTimeoutError,
    exceptions.ThrottledOpError,
    exceptions.NotReadOnlyCallError,
    exceptions.NewConfigNoQuorumError,
    KazooTimeoutError,
)


def is_passing(error: BaseException) -> bool:
    """Whether the cause is a connection or a member, not the request. It is then unknown whether a
    write was carried out."""
    return isinstance(error, _PASSING)


def judge(error: BaseException, address: ZooKeeperAddress) -> StoreError:
    """Returns the error to raise for one that does not pass."""
    said = f"ZooKeeper at {address} reported {type(error).__name__.removesuffix('Error')}"
    if isinstance(error, exceptions.NoAuthError | exceptions.InvalidACLError):
        return StoreRefused(f"{said}; {_access_advice(address)}")
    if isinstance(error, exceptions.AuthFailedError):
        return StoreRefused(
            f"{said}: it does not accept the login; check its settings for authentication, and "
            "use a user and a password of its scheme 'digest'"
        )
    if isinstance(error, exceptions.NoNodeError):
        return StoreCorrupt(
            f"{said}: znodes below {address.namespace}/penstock are missing; stop the brokers of "
            "the cluster and restore ZooKeeper from a backup"
        )
    if isinstance(error, exceptions.QuotaExceededError):
        return StoreFull(
            f"{said}, and nothing was changed: raise the quota of a znode above or at "
            f"{address.namespace or '/'} (zkCli.sh: listquota, setquota)"
        )
    if isinstance(error, exceptions.UnimplementedError):
        return StoreUnavailable(f"{said}: it must be version 3.5 or newer")
    return StoreUnavailable(f"{said} ({error}); see the log of the ZooKeeper server")


def cannot_create(path: str, address: ZooKeeperAddress) -> StoreRefused:
    """Returns the error for a znode above those of the store that may not be made."""
    who = f"the user {address.user!r}" if address.user else "a client without a user"
    return StoreRefused(
        f"ZooKeeper at {address} has no {path}, and {who} may not create it: let an administrator "
        f"create {address.namespace or path} with the rights cdrwa for it (zkCli.sh: create, "
        "setAcl)"
    )


def _access_advice(address: ZooKeeperAddress) -> str:
    root = f"{address.namespace}/penstock"
    if address.user:
        return (
            f"the user {address.user!r} with this password may not use {root}: check that "
            f"{password_place(address)} has the password with which the cluster was created, or "
            f"let an administrator grant it the rights cdrwa (zkCli.sh: setAcl -R {root})"
        )
    return (
        f"{root} is only for a user: give the store's address a user and a password_file, or let "
        f"an administrator change its access control list (zkCli.sh: setAcl -R {root})"
    )


def password_place(address: ZooKeeperAddress) -> str:
    """Returns where the password of the user is."""
    if address.password_env:
        return f"the environment variable {address.password_env}"
    return f"the file {address.password_file}"


def read_password(address: ZooKeeperAddress) -> str:
    """Reads the password of the address's user. Raises `StoreRefused` if it cannot be used."""
    place = password_place(address)
    if address.password_env:
        text = os.environ.get(address.password_env)
        if text is None:
            raise StoreRefused(
                f"{place}, which should have the password for ZooKeeper, is not set: set it"
            )
    else:
        try:
            text = read_file(address.password_file, PASSWORD_BYTES_MAX + 1).decode()
        except OSError as error:
            raise StoreRefused(
                f"cannot read {place} with the password for ZooKeeper: {error.strerror}"
            ) from error
        except UnicodeDecodeError:
            raise StoreRefused(f"{place} with ZooKeeper's password is not UTF-8 text") from None
    password = text.rstrip("\r\n")
    if not password or "\n" in password or len(text) > PASSWORD_BYTES_MAX:
        raise StoreRefused(f"{place} must have one line, with the password for ZooKeeper")
    return password
