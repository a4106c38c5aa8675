"""A prompt's token ids as its caller sent them: numbers, or packed. What truncation drops is not looked at."""

import sys
from array import array
from typing import Any

from scheduler_svc.columns import INT, WIDTHS

WIDTH = WIDTHS[INT]


def num_kept_ids(request: Any) -> int:
    """Token ids of the prompt that truncation leaves."""
    sent, options = request.token_ids, request.prompt_options
    num_ids = len(sent.ids) or len(sent.packed_ids) // WIDTH
    return min(num_ids, options.truncate_prompt_tokens) if options.HasField("truncate_prompt_tokens") else num_ids


def kept_ids(request: Any, max_model_len: int) -> "array[int]":
    """These ids as uint32, whatever they are; none if they cannot fit: a prompt may hold millions."""
    sent, num_kept = request.token_ids, num_kept_ids(request)
    kept = array("I")
    if not 0 < num_kept < max_model_len:
        return kept
    if len(sent.ids):
        # An array takes a list at once, and other sequences one by one.
        return array("I", sent.ids[-num_kept:])
    kept.frombytes(sent.packed_ids[-num_kept * WIDTH :])
    if sys.byteorder == "big":
        kept.byteswap()
    return kept


def fault_of_form(sent: Any) -> str:
    """What is wrong with a TokenIds' form; empty if nothing is."""
    if len(sent.ids) and sent.packed_ids:
        return "excludes token_ids.ids"
    return f"must be whole numbers of {WIDTH} bytes" if len(sent.packed_ids) % WIDTH else ""
