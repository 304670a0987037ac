"""SQLite keeps the contract of metadata stores."""

from __future__ import annotations

from .contract import StoreContract


class TestSqlite(StoreContract):
    """With the fixture `bench` of this folder."""
