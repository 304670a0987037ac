"""The listeners of a broker: TLS, authentication, and the sessions of their connections."""
