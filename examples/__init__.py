"""Things to try; each runs by itself."""
