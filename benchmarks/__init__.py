"""Comparisons with what users would pick instead: workloads with their seeds, our adapter, peers' adapters."""
