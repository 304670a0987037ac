"""Where the secret key of delegation tokens comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.access.token_secret import SECRET_VARIABLE, with_token_secret
from penstock.broker.config import BrokerConfig, ConfigError

NAME = "delegation.token.secret.key"
SECRET = "0123456789abcdef"


def secret_of(environment: dict[str, str] | None = None, **kafka: str) -> str | None:
    given = tuple((f"{NAME}{'.file' if name == 'file' else ''}", kafka[name]) for name in kafka)
    config = with_token_secret(BrokerConfig(kafka=given), environment or {})
    assert SECRET not in repr(config)
    return dict(config.kafka).get(NAME)


def test_the_key_comes_from_a_setting_a_file_or_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{SECRET}\n")
    assert secret_of() is None
    assert secret_of(key=SECRET) == SECRET
    assert secret_of(file=str(path)) == SECRET
    assert secret_of({SECRET_VARIABLE: SECRET}) == SECRET
    assert secret_of({SECRET_VARIABLE: "another key for tests"}, file=str(path)) == SECRET


def test_a_file_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(ConfigError, match="cannot read"):
        secret_of(file=str(path))
    path.write_bytes(b" \n")
    with pytest.raises(ConfigError, match="empty"):
        secret_of(file=str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not text"):
        secret_of(file=str(path))


def test_two_keys_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(SECRET)
    with pytest.raises(ConfigError, match="keep one") as error:
        secret_of(key=SECRET, file=str(path))
    assert SECRET not in str(error.value)
