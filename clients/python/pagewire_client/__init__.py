"""Clients of a Pagewire server."""
