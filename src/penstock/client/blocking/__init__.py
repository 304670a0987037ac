"""The sync clients: each runs its async client on an event loop in its own thread."""
