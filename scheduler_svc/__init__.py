"""Pagewire's scheduler service: fronts, links and the loop around the pure core."""
