"""Profiles: the address and the security options of a cluster, under a name, in a file.

A profile is `$XDG_CONFIG_HOME/penstock/profiles/NAME.toml`. Clients use it when they are given
`profile:NAME` instead of an address, so it works wherever an address is given. Its keys are
`bootstrap` and the client options, and for a password also `sasl_password_file` or
`sasl_password_env`. A file that holds a secret must not be readable by other users.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from penstock.client.errors import OptionError
from penstock.client.security_options import SECRETS, SecurityOptions

PREFIX: Final = "profile:"
PROFILE_VARIABLE: Final = "PENSTOCK_PROFILE"
SOURCES: Final[Mapping[str, str]] = {
    "sasl_password_file": "sasl_password",
    "sasl_password_env": "sasl_password",
}
"""Keys that say where a secret is -> the option that gets it."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KNOWN: Final = frozenset(SecurityOptions.__dataclass_fields__) | SOURCES.keys() | {"bootstrap"}
_FILE_BYTES_MAX: Final = 1 << 20
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Profile:
    """The contents of a profile."""

    name: str
    bootstrap: str
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Its other keys, as they are in the file."""

    @property
    def shown(self) -> dict[str, Any]:
        """The values without secrets."""
        return {key: "***" if key in SECRETS else value for key, value in self.values.items()}

    def options(self) -> dict[str, Any]:
        """Returns the options for a client. Reads the secrets that are in other places."""
        options = {key: value for key, value in self.values.items() if key not in SOURCES}
        for key, option in SOURCES.items():
            if key in self.values:
                options[option] = _secret(self, key, str(self.values[key]))
        return options


class FromProfile:
    """The class method `from_profile` of a client."""

    def __get__(self, instance: object, owner: Callable[..., C]) -> Callable[..., C]:
        def from_profile(name: str, **options: Any) -> C:
            """Makes a client for the cluster of a profile: `Producer.from_profile("prod")`.

            Options given here replace those of the profile. `penstock profile create` makes
            profiles.
            """
            return owner(PREFIX + name, **options)

        return from_profile


def home() -> Path:
    """Returns the directory of Penstock's configuration."""
    given = os.environ.get("XDG_CONFIG_HOME")
    base = Path(given) if given and Path(given).is_absolute() else Path.home() / ".config"
    return base / "penstock"


def path_of(name: str) -> Path:
    """Returns the file of a profile. Raises `OptionError` for a name that is not possible."""
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"{name!r} cannot be the name of a profile: use up to 64 letters, digits, dots, dashes "
            "and underscores"
        )
    return home() / "profiles" / f"{name}.toml"


def names() -> list[str]:
    """Returns the names of all profiles, sorted."""
    try:
        found = [path.stem for path in (home() / "profiles").iterdir() if path.suffix == ".toml"]
    except FileNotFoundError:
        return []
    return sorted(name for name in found if _NAME.fullmatch(name))


def load(name: str) -> Profile:
    """Reads a profile. Raises `OptionError` if there is none, or if it must not be used."""
    path = path_of(name)
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            values = tomllib.loads(file.read(_FILE_BYTES_MAX).decode())
    except FileNotFoundError:
        known = ", ".join(names()) or "none"
        raise OptionError(
            f"there is no profile {name}: the profiles are {known}; create it with: penstock "
            f"profile create {name}"
        ) from None
    except OSError as error:
        raise OptionError(f"the profile {path} cannot be read: {error.strerror}") from None
    except ValueError:
        # The error of the parser may show a part of the file.
        raise OptionError(f"the profile {path} is not valid TOML: correct it") from None
    _check(path, mode, values)
    bootstrap = values.pop("bootstrap")
    return Profile(name, bootstrap, values)


def _check(path: Path, mode: int, values: Mapping[str, Any]) -> None:
    if unknown := sorted(values.keys() - _KNOWN):
        raise OptionError(f"the profile {path} has the unknown key {unknown[0]!r}: remove it")
    bootstrap = values.get("bootstrap")
    if not isinstance(bootstrap, str) or bootstrap.startswith(PREFIX):
        raise OptionError(f'the profile {path} needs an address: bootstrap = "HOST:PORT,..."')
    secrets = sorted(values.keys() & SECRETS - {"ssl_key"})
    if "-----BEGIN" in str(values.get("ssl_key", "")):
        secrets.append("ssl_key")
    if secrets and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise OptionError(
            f"the profile {path} has {secrets[0]}, and other users may read it: run chmod 600 "
            f"{shlex.quote(str(path))}, and change the password if others could have read it"
        )


def _secret(profile: Profile, key: str, where: str) -> str:
    if key.endswith("_env"):
        value = os.environ.get(where)
        if not value:
            raise OptionError(
                f"profile {profile.name}: the environment variable {where} is not set: it must "
                "contain the password"
            )
        return value
    path = Path(where).expanduser()
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise OptionError(
                    f"profile {profile.name}: other users may read {path}: run chmod 600 "
                    f"{shlex.quote(str(path))}"
                )
            text = file.read(_FILE_BYTES_MAX).decode().rstrip("\r\n")
    except OSError as error:
        raise OptionError(
            f"profile {profile.name}: {path} cannot be read: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise OptionError(f"profile {profile.name}: {path} is not UTF-8 text") from None
    return text


def save(name: str, bootstrap: str, values: Mapping[str, Any]) -> Path:
    """Writes a profile that only its owner can read, in place of an older one. Returns its path."""
    path = path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.parent.chmod(0o700)
    lines = [
        f"{key} = {_toml(value)}\n" for key, value in {"bootstrap": bootstrap, **values}.items()
    ]
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    return path


def delete(name: str) -> None:
    """Deletes a profile. Raises `OptionError` if there is none."""
    path = path_of(name)
    try:
        path.unlink()
    except FileNotFoundError:
        raise OptionError(f"there is no profile {name}") from None
    if current() == name:
        use(None)


def current() -> str | None:
    """Returns the profile that commands use if none is given."""
    try:
        return (home() / "profile").read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def use(name: str | None) -> None:
    """Sets the profile that commands use if none is given."""
    if name is None:
        (home() / "profile").unlink(missing_ok=True)
        return
    load(name)
    (home() / "profile").write_text(f"{name}\n", "utf-8")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = "".join(
        f"\\u{ord(char):04x}" if ord(char) < 32 or char in '"\\\x7f' else char
        for char in str(value)
    )
    return f'"{text}"'
