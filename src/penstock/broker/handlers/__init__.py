"""The request handlers: one module per API. Each docstring states the contract of its `handle`."""
