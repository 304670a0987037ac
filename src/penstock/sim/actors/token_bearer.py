"""Programs that log in with the tokens of the holder, each time with a new connection.

After the login they ask for two groups: one that the holder may read, and one that it may not. So
it shows as whom they act. They also use tokens that have ended.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.connection_opening import open_connection
from penstock.client.errors import AuthenticationFailed, ClientError
from penstock.client.security_settings import SecuritySettings
from penstock.security.client_login import PasswordLogin
from penstock.sim.access_plan import HOLDER_GROUP, OTHERS_GROUP, SCRAM
from penstock.sim.actors.shared_state import REQUEST_TIMEOUT_MS, Actor
from penstock.sim.history import FAIL, INFO, OK, TokenLogin
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import HeartbeatRequest, HeartbeatResponse

_NEWEST: Final = 12
"""How many of the tokens that were created last are used."""


async def run_token_bearer(actor: Actor) -> None:
    shared, draws = actor.shared, actor.draws
    brokers = [*range(shared.scenario.brokers)]
    while not shared.over.is_set():
        await shared.rest_until_revoked(actor.pause_s())
        newest, ended = [*shared.tokens][-_NEWEST:], [*shared.ended_tokens][-2:]
        if newest:
            token_id = draws.choice(ended if ended and draws.random() < 0.4 else newest)
            await log_in_with_token(actor, token_id, draws.choice(brokers))


async def log_in_with_token(actor: Actor, token_id: str, broker: int) -> TokenLogin:
    """Logs in at one broker, and asks for both groups."""
    shared = actor.shared
    served: tuple[str, ...] = ()
    begun_ms, status, error = shared.now_ms(), OK, ""
    login = PasswordLogin(
        SCRAM, token_id, b64encode(shared.tokens[token_id]).decode(), tokenauth=True
    )
    cluster = _cluster(actor, login)
    try:
        connection = await open_connection(
            actor.env.network,
            cluster.config.bootstrap[broker],
            cluster.config.connection,
            cluster._security,
        )
    except AuthenticationFailed as refused:
        status, error = FAIL, str(refused)
    except ClientError as failed:
        status, error = INFO, str(failed)
    ended_ms = shared.now_ms()
    low_ms, high_ms = shared.wall_range(broker, begun_ms, ended_ms)
    if status == OK:
        served = await _groups(connection)
        connection.close()
    shared.count(f"token_logins_{status}")
    entry = TokenLogin(
        process=actor.name,
        status=status,
        begun_ms=begun_ms,
        ended_ms=ended_ms,
        error=error,
        token_id=token_id,
        broker=broker,
        wall_ms=low_ms,
        wall_until_ms=high_ms,
        any_wall_until_ms=shared.wall_range(None, 0.0, ended_ms)[1],
        served=served,
    )
    shared.history.add(entry)
    return entry


def _cluster(actor: Actor, login: PasswordLogin) -> Cluster:
    env, config = actor.env, actor.shared.cluster_config(actor.user, REQUEST_TIMEOUT_MS)
    security = SecuritySettings(login=login)
    by_token = replace(config, connection=replace(config.connection, security=security))
    return Cluster(by_token, env.network, env.clock, env.random, env.executor)


async def _groups(connection: Connection) -> tuple[str, ...]:
    """Returns the groups that the broker lets it use: it answers that it is no member."""
    served = []
    for group in (HOLDER_GROUP, OTHERS_GROUP):
        request = HeartbeatRequest(group, generation_id=0, member_id="nobody")
        try:
            answer = await connection.call(request, HeartbeatResponse)
        except ClientError:
            break
        if answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            served.append(group)
    return tuple(served)
