"""The names of the SASL mechanisms. Clients read their options without loading the mechanisms."""

from __future__ import annotations

from typing import Final

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SCRAM_NAMES: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISM_NAMES: Final = (PLAIN, *SCRAM_NAMES, OAUTHBEARER)
"""The mechanisms that a client may use."""
