"""An OpenAI-compatible HTTP gateway: one more client of the gRPC API, for tools that speak nothing else."""
