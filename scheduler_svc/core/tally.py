"""Counts since start."""

from scheduler_svc.core.hit_counts import HitCounts


class Tally:
    """Only ever grows."""

    __slots__ = (
        "hits",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_cut_tokens",
        "num_output_tokens",
        "num_page_evictions",
        "num_preemptions",
        "num_steps",
        "num_wasted_tokens",
    )

    def __init__(self) -> None:
        self.hits = HitCounts()
        self.num_preemptions = 0
        self.num_computed_tokens = 0
        """Tokens scheduled, recomputed ones included."""
        self.num_output_tokens = 0
        """Tokens taken from results."""
        self.num_cached_tokens = 0
        """Prompt tokens found in the prefix cache at first admissions."""
        self.num_wasted_tokens = 0
        """Tokens sampled and dropped: their request had ended, or ended before them."""
        self.num_cut_tokens = 0
        """Of the wasted ones: taken from results first, then found to be behind a stop string."""
        self.num_page_evictions = 0
        """Pages that workers which are gone had evicted."""
        self.num_steps = 0
