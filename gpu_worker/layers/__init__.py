"""Layers models are made of."""
