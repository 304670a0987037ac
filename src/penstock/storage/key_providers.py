"""Makes the key provider that the setting `encryption.key.provider` names."""

from __future__ import annotations

from penstock.ports import KeyProvider, Random
from penstock.storage.key_command import KeyCommand
from penstock.storage.key_file import KeyFile


def key_provider(
    address: str, random: Random, *, token_file: str = "", ca_file: str = ""
) -> KeyProvider | None:
    """Returns the provider; None if the address is empty. Raises `ValueError` for a wrong one.

    `token_file` and `ca_file` are for Vault.
    """
    kind, colon, where = address.strip().partition(":")
    if not kind and not colon:
        return None
    if kind == "file" and where:
        return KeyFile(where, random)
    if kind == "command" and where:
        return KeyCommand(where)
    if kind == "vault" and where:
        # Loaded only if it is used: it needs the HTTP client.
        from penstock.storage.vault_keys import VaultKeys  # noqa: PLC0415 - as said

        return VaultKeys(where, token_file=token_file, ca_file=ca_file)
    raise ValueError(
        f"encryption.key.provider is {address!r}: write file:PATH, command:PATH or "
        "vault:https://HOST:8200/transit"
    )
