"""The error of keys and certificates that cannot be used.

It is apart from `tls`, which raises it: `tls` loads a library for certificates, which code that
only handles the error does not need.
"""

from __future__ import annotations


class TlsRefused(ValueError):
    """A key, certificate or truststore cannot be used. The message names the setting."""
