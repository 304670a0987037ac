"""The options of commands that read encrypted logs, and the disk that these commands read with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from penstock.cli.output import CommandFailed
from penstock.runtime import SystemRandom
from penstock.storage.data_keys import Keyring, KeyUnavailable
from penstock.storage.encrypted_disk import EncryptedDisk
from penstock.storage.key_providers import key_provider
from penstock.storage.readonly import ReadOnlyDisk

KeyFileOption = Annotated[
    str,
    typer.Option(
        "--key-file", metavar="FILE", help="The key file of `penstock key`, for encrypted logs."
    ),
]
KeyProviderOption = Annotated[
    str,
    typer.Option(
        "--key-provider",
        metavar="ADDRESS",
        help="The value of the broker's encryption.key.provider: file:PATH, command:PATH or "
        "vault:URL.",
    ),
]


@contextmanager
def asking_for_keys() -> Iterator[None]:
    """Says how to give a key, if one is missing."""
    try:
        yield
    except KeyUnavailable as error:
        raise CommandFailed(f"{error}. This command takes --key-file or --key-provider") from error


def readable_disk(key_file: str = "", provider: str = "") -> EncryptedDisk:
    """Returns a disk that changes nothing and can read what these keys have encrypted."""
    if key_file and provider:
        raise CommandFailed("give --key-file or --key-provider, not both")
    random = SystemRandom()
    try:
        keys = key_provider(f"file:{key_file}" if key_file else provider, random)
    except (ValueError, OSError) as error:
        raise CommandFailed(str(error)) from error
    return EncryptedDisk(ReadOnlyDisk(), Keyring(keys, random), read_only=True)
