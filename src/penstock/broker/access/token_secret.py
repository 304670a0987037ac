"""The secret key of delegation tokens: from a setting, a file, or the environment.

A file or an environment variable keeps the key out of the broker's config file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.broker.config import BrokerConfig, ConfigError
from penstock.metadata.configs import BrokerConfigs
from penstock.runtime import read_file

SECRET_VARIABLE: Final = "PENSTOCK_DELEGATION_TOKEN_SECRET_KEY"  # noqa: S105 - a name
_SETTING: Final = "delegation.token.secret.key"
_BYTES_MAX: Final = 4096


def with_token_secret(
    config: BrokerConfig, environment: Mapping[str, str] = os.environ
) -> BrokerConfig:
    """Returns the configuration with the secret key, wherever it comes from. It reads a file."""
    settings = BrokerConfigs(static=dict(config.kafka))
    path = settings.text_value("delegation.token.secret.key.file")
    given = settings.text_value("delegation.token.secret.key")
    if path and given:
        raise ConfigError(f"{_SETTING} and {_SETTING}.file are both set: keep one of them")
    secret = _content(path) if path else given or environment.get(SECRET_VARIABLE, "").strip()
    if not secret:
        return config
    return replace(config, kafka=tuple({**dict(config.kafka), _SETTING: secret}.items()))


def _content(path: str) -> str:
    try:
        text = read_file(path, _BYTES_MAX).decode().strip()
    except OSError as error:
        raise ConfigError(f"{_SETTING}.file: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{_SETTING}.file: {path} is not text") from None
    if not text:
        raise ConfigError(f"{_SETTING}.file: {path} is empty: write the secret key to it")
    return text
