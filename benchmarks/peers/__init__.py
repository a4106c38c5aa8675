"""Adapters of other engines; each runs in an environment of its own."""
