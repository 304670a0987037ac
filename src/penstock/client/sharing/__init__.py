"""A member of a share group (KIP-932): it acquires records, and acknowledges each of them."""
