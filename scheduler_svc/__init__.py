"""Pagewire's scheduler service: fronts, links and the loop around the pure core."""

from scheduler_svc import compiled

code = compiled.choose()
"""Whether the hot modules of this process are compiled, or why not."""
