"""Records who did what: events are collected, and written to a log and to the topic `__audit`."""
