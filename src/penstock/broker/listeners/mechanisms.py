"""The SASL mechanisms that a listener offers, each with the users that it checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.broker.access.credentials import UserCredentials
from penstock.broker.config import ConfigError
from penstock.ports import Random
from penstock.security.exchange import Exchange
from penstock.security.listener_security import SaslSettings
from penstock.security.oauthbearer import OAuthBearerExchange, TokenCheck
from penstock.security.plain import (
    JaasInvalid,
    PlainScramServer,
    PlainTableServer,
    plain_users,
    users_table,
)
from penstock.security.sasl_session import OfferedMechanism
from penstock.security.scram import ScramServer, nonce_text
from penstock.security.scram_credentials import ScramMechanism

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
JAAS: Final = "sasl.jaas.config"
_NONCE_BYTES: Final = 24
_SECRET_BYTES: Final = 32
_SCRAM: Final = {each.sasl_name: each for each in ScramMechanism}


def offered_mechanisms(
    settings: SaslSettings,
    credentials: UserCredentials,
    random: Random,
    check_token: TokenCheck | None,
) -> Sequence[OfferedMechanism]:
    """Returns the mechanisms of a listener. `check_token` is needed for OAUTHBEARER only.

    PLAIN checks the users in its `sasl.jaas.config`, as Kafka does, or else the users of SCRAM.
    """
    made: list[OfferedMechanism] = []
    for name in settings.mechanisms:
        made.append(
            OfferedMechanism(
                name,
                _new_exchange(name, settings, credentials, random, check_token),
                settings.reauth_ms[name],
            )
        )
    return tuple(made)


def _new_exchange(
    name: str,
    settings: SaslSettings,
    credentials: UserCredentials,
    random: Random,
    check_token: TokenCheck | None,
) -> Callable[[], Exchange]:
    mechanism = _SCRAM.get(name)
    if mechanism is not None:
        return partial(_scram, mechanism, credentials, random)
    if name == PLAIN:
        jaas = settings.of_mechanism[name].get(JAAS, "")
        try:
            users = plain_users(jaas) if jaas.strip() else {}
        except JaasInvalid as error:
            raise ConfigError(f"{JAAS} of PLAIN: {error}") from error
        if users:
            return partial(PlainTableServer, users_table(users, random.bytes(_SECRET_BYTES)))
        return partial(_plain, credentials)
    if check_token is None:
        raise ValueError(f"{name} needs a check of tokens")
    return partial(OAuthBearerExchange, check_token)


def _scram(mechanism: ScramMechanism, credentials: UserCredentials, random: Random) -> Exchange:
    nonce = nonce_text(random.bytes(_NONCE_BYTES))
    lookup = partial(credentials.scram, mechanism)
    return ScramServer(mechanism, lookup, credentials.decoys, nonce, credentials.tokens.logins)


def _plain(credentials: UserCredentials) -> Exchange:
    return PlainScramServer(credentials.plain, credentials.decoys)
