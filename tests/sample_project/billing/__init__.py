"""A small user's project, checked by `mypy --strict` as a user would: every public name is used."""
