"""Counts since start."""


class Tally:
    """Only ever grows."""

    __slots__ = (
        "num_asked_pages",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_diverged_pages",
        "num_evicted_pages",
        "num_hit_pages",
        "num_output_tokens",
        "num_preemptions",
        "num_steps",
        "num_wasted_tokens",
    )

    def __init__(self) -> None:
        self.num_asked_pages = 0
        """Full prompt pages looked for in the prefix cache at first admissions."""
        self.num_hit_pages = 0
        self.num_evicted_pages = 0
        """Of those that were not found: had been cached and were evicted since."""
        self.num_diverged_pages = 0
        """Of those: the page before is cached, and goes on in another way."""
        self.num_preemptions = 0
        self.num_computed_tokens = 0
        """Tokens scheduled, recomputed ones included."""
        self.num_output_tokens = 0
        """Tokens taken from results."""
        self.num_cached_tokens = 0
        """Prompt tokens found in the prefix cache at first admissions."""
        self.num_wasted_tokens = 0
        """Tokens sampled and dropped: their request had ended, or ended before them."""
        self.num_steps = 0
