"""Pagewire's worker: page pool, model and sampler, with a GPU or without one."""
