"""The delegation tokens of the cluster, as this broker knows them.

When a request that removes a token or brings its end forward is answered, no broker accepts the
token any more. The change is confirmed by all brokers as a change of ACLs is (`authorization`). The
answer does not wait for a broker whose lease is over, so such a broker accepts no token: it closes
the connection, and the client tries another broker. A token that expires by itself is refused by
each broker's own clock.

All brokers need the same secret key. A broker that has another one than the brokers that run does
not start. If no other broker runs, its secret key is the one of the cluster from now on.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from penstock.broker.access.authorization import Authorization
from penstock.broker.config import ConfigError
from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.controller import ControllerRuntime
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.delegation_tokens import (
    REMOVED_PER_COMMIT,
    keep_secret_check,
    remove_expired,
)
from penstock.metadata.image import Changed, ClusterImage
from penstock.ports import Env
from penstock.security.delegation_tokens import (
    CHECK_SALT_BYTES,
    HMAC_BYTES,
    TOKEN_ID_BYTES,
    DelegationToken,
    SecretCheck,
    TokenKeys,
    TokenLifetimes,
    TokenLogins,
    token_id_of,
)
from penstock.stores.errors import StoreError
from penstock.wire.errors import ErrorCode, KafkaError, ProtocolError

_SLEEP_MAX_S: Final = 86_400.0
_log = logging.getLogger(__name__)


class DelegationTokens:
    """Finds tokens, and checks those that clients log in with. It follows the metadata store."""

    def __init__(
        self, env: Env, cluster: ClusterView, authorization: Authorization, configs: BrokerConfigs
    ) -> None:
        self._env = env
        self._cluster = cluster
        self._authorization = authorization
        self._interval_ms = configs.int_value("delegation.token.expiry.check.interval.ms")
        self.lifetimes = TokenLifetimes(
            configs.int_value("delegation.token.max.lifetime.ms"),
            configs.int_value("delegation.token.expiry.time.ms"),
        )
        secret = configs.text_value("delegation.token.secret.key")
        try:
            self._keys = TokenKeys(secret) if secret else None
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self.logins = None if self._keys is None else TokenLogins(self._keys, self._find)
        """None if there are no delegation tokens."""
        self._ids: dict[bytes, str] = {}
        """The ids by the fingerprints of their HMACs."""
        self._fingerprints: dict[str, bytes] = {}
        self._check: SecretCheck | None = None
        """The check in the store that fits the secret key of this broker."""
        cluster.listen(self._on_change)

    async def agree_on_secret(self, broker_id: int, controller: ControllerRuntime) -> None:
        """Checks that this broker has the secret key of the other brokers.

        Raises `ConfigError` if it has another one."""
        keys, image, run = self._keys, self._cluster.image, self._env.executor.run
        held = image.tokens.secret_check
        if keys is None:
            if held is not None and _others(image, broker_id):
                _log.warning(
                    "delegation.token.secret.key is not set on this broker, but it is on others: "
                    "clients with delegation tokens cannot log in here; set the same key"
                )
            return
        fits = held is not None and await run(partial(keys.fits, held))
        if not fits:
            made = await run(partial(keys.make_check, self._env.random.bytes(CHECK_SALT_BYTES)))
            kept = await controller.commit_own(
                partial(keep_secret_check, broker_id=broker_id, made=made, instead_of=held)
            )
            if kept != made and not await run(partial(keys.fits, kept)):
                raise ConfigError(_different(_others(self._cluster.image, broker_id)))
            if held is not None:
                _log.warning(
                    "delegation.token.secret.key was changed: all delegation tokens created with "
                    "the old key are no longer accepted"
                )
            held = kept
        self._check = held

    def require_agreed(self, broker_id: int) -> None:
        """Raises `ConfigError` if another broker has stored the check of another secret key since
        this one has agreed to it: they were started at the same time."""
        if self._check not in (None, self._cluster.image.tokens.secret_check):
            raise ConfigError(_different(_others(self._cluster.image, broker_id)))

    def require_enabled(self) -> TokenKeys:
        """Returns what derives HMACs. Raises DELEGATION_TOKEN_AUTH_DISABLED without a secret
        key."""
        if self._keys is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        return self._keys

    def new_id(self) -> str:
        while (token_id := token_id_of(self._env.random.bytes(TOKEN_ID_BYTES))) is None:
            pass
        return token_id

    def id_of(self, token_hmac: bytes) -> str | None:
        """Returns the id of the token with this HMAC; None if there is none."""
        keys = self.require_enabled()
        # A client can send a text of any size instead, which would take long to hash.
        if len(token_hmac) != HMAC_BYTES:
            return None
        return self._ids.get(keys.fingerprint(token_hmac))

    def is_valid(self, token_id: str) -> bool:
        """Returns whether a session that began with this token may continue.

        A broker that may not know of all removals says no."""
        if self._authorization.is_fenced():
            return False
        token = self._cluster.image.tokens.by_id.get(token_id)
        return token is not None and token.is_valid(self._env.clock.wall_ms())

    def _find(self, token_id: str) -> DelegationToken | None:
        if self._authorization.is_fenced():
            raise ProtocolError(
                "a client has a delegation token, and this broker is not sure that it knows which "
                "ones were removed, because it cannot reach the metadata store or has just started"
            )
        return self._cluster.image.tokens.by_id.get(token_id)

    def _on_change(self, changed: Changed) -> None:
        keys, logins = self._keys, self.logins
        if keys is None or logins is None:
            return
        if changed.token_secret and self._check not in (
            None,
            self._cluster.image.tokens.secret_check,
        ):
            _log.error(
                "another broker was started with another delegation.token.secret.key: tokens of "
                "one broker are not accepted by the other; give all brokers the same key, and "
                "restart them"
            )
        for token_id in changed.tokens:
            exists = token_id in self._cluster.image.tokens.by_id
            if exists and token_id not in self._fingerprints:
                fingerprint = keys.fingerprint(keys.hmac(token_id))
                self._fingerprints[token_id] = fingerprint
                self._ids[fingerprint] = token_id
            elif not exists and token_id in self._fingerprints:
                del self._ids[self._fingerprints.pop(token_id)]
                logins.forget(token_id)

    async def run(self, controller: ControllerRuntime) -> None:
        """Removes expired tokens while this broker is the controller, until cancelled."""
        while True:
            await self._env.clock.sleep(min(self._interval_ms / 1000, _SLEEP_MAX_S))
            if controller.term is None:
                continue
            try:
                await self._remove_expired(controller)
            except (StoreError, KafkaError, TimeoutError) as error:
                _log.warning("cannot remove expired delegation tokens, retrying: %s", error)

    async def _remove_expired(self, controller: ControllerRuntime) -> None:
        remove = partial(remove_expired, now_ms=self._env.clock.wall_ms())
        removed = REMOVED_PER_COMMIT
        while removed == REMOVED_PER_COMMIT:
            removed = await controller.decide(remove)
            if removed:
                _log.info("removed %d delegation tokens that have expired", removed)


def _others(image: ClusterImage, broker_id: int) -> list[int]:
    return sorted(each for each in image.brokers if each != broker_id)


def _different(brokers: list[int]) -> str:
    others = f"brokers {', '.join(map(str, brokers))}" if brokers else "the other brokers"
    return (
        f"delegation.token.secret.key is not the one that {others} use: give this broker the same "
        "key. To change the key, stop all brokers, wait until their sessions have expired, and "
        "start them with the new key: all tokens are void then"
    )
