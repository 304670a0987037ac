"""One module per API. Each is headed by its contract and has one `handle`."""
