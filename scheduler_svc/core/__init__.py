"""The pure scheduler core: values in, values out; standard library only, no clock, no randomness, no I/O."""
