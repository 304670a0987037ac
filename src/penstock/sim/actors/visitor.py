"""The visitor: a user that logs in all the time, while its password is deleted and set again.

A change of a password is in force at the broker that acknowledges it. The other brokers learn of it
from the metadata store. An open connection stays.
"""

from __future__ import annotations

from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.connection_opening import open_connection
from penstock.client.errors import AuthenticationFailed, ClientError
from penstock.security.scram_credentials import ITERATIONS_MIN, SCRAM_MECHANISMS, password_hash
from penstock.sim.access_plan import SCRAM, VISITOR, password_of
from penstock.sim.actors.rights_admin import ADMIN_TIMEOUT_MS
from penstock.sim.actors.sends import with_cluster
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import FAIL, INFO, OK, LoginAttempt, PasswordChange
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)

_SALT: Final = b"the visitor's salt".ljust(32)
_PAUSE_MEAN_S: Final = 3.0


async def run_password_admin(actor: Actor) -> None:
    """Deletes and sets the password of the visitor, at any broker."""
    shared, draws = actor.shared, actor.draws
    cluster = await with_cluster(actor, ADMIN_TIMEOUT_MS)
    if cluster is None:
        return
    is_set = True
    try:
        while not shared.over.is_set():
            await shared.rest(min(draws.expovariate(1 / _PAUSE_MEAN_S), 10.0))
            broker = draws.choice(sorted(cluster.brokers))
            if await set_password(actor, cluster, broker, is_set=not is_set):
                is_set = not is_set
    finally:
        cluster.close()


async def set_password(actor: Actor, cluster: Cluster, broker: int, *, is_set: bool) -> bool:
    """Sets the visitor's password, or deletes it. Returns whether that was acknowledged."""
    shared, error = actor.shared, ""
    begun_ms = shared.now_ms()
    try:
        connection = await cluster.connection(broker)
        answer = await connection.call(_change(is_set), AlterUserScramCredentialsResponse)
        code = answer.results[0].error_code
        # The password was deleted already, by a request whose answer got lost.
        if code and (is_set or code != ErrorCode.RESOURCE_NOT_FOUND):
            error = ErrorCode(code).name
    except ClientError as failed:
        error = str(failed)
    shared.count("passwords_not_changed" if error else "passwords_changed")
    shared.history.add(
        PasswordChange(
            process=actor.name,
            status=INFO if error else OK,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=error,
            broker=broker,
            is_set=is_set,
        )
    )
    return not error


def _change(is_set: bool) -> AlterUserScramCredentialsRequest:
    kind = SCRAM_MECHANISMS[SCRAM]
    if not is_set:
        deletion = AlterUserScramCredentialsRequest.Deletion(VISITOR, kind)
        return AlterUserScramCredentialsRequest(deletions=[deletion])
    salted = password_hash(kind, password_of(VISITOR), _SALT, ITERATIONS_MIN).run()
    upsertion = AlterUserScramCredentialsRequest.Upsertion(
        VISITOR, kind, ITERATIONS_MIN, _SALT, salted
    )
    return AlterUserScramCredentialsRequest(upsertions=[upsertion])


async def run_visitor(actor: Actor) -> None:
    """Logs in at any broker, each time with a new connection."""
    shared, draws = actor.shared, actor.draws
    brokers = [*range(shared.scenario.brokers)]
    while not shared.over.is_set():
        await shared.rest(2 * actor.pause_s())
        await log_in_once(actor, draws.choice(brokers))


async def log_in_once(actor: Actor, broker: int) -> str:
    """Logs in at one broker. Returns the status."""
    shared = actor.shared
    cluster = actor.cluster()
    begun_ms, status, error = shared.now_ms(), OK, ""
    try:
        connection = await open_connection(
            actor.env.network,
            cluster.config.bootstrap[broker],
            cluster.config.connection,
            cluster._security,
        )
        connection.close()
    except AuthenticationFailed as refused:
        status, error = FAIL, str(refused)
    except ClientError as failed:
        status, error = INFO, str(failed)
    shared.count(f"logins_{status}")
    shared.history.add(
        LoginAttempt(
            process=actor.name,
            status=status,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=error,
            broker=broker,
        )
    )
    return status
