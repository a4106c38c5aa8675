"""Tells for each page of a prompt whether a request would find it cached, and why not.

hit            in the longest leading run that is cached on one worker
evicted        the tenant sent these tokens with this salt, and the page was evicted since
salted         the tenant sent these tokens without a salt (a tenant that is known by name: with any), there they are
               cached
diverged       the tenant's closest prompt with this salt, or what was generated for it, goes on in another way from a
               token of this page on
tail not full  the last page; only full pages are cached
cold           the rest

What others sent decides only about hits, which every request shows by its usage: nobody learns more of a stranger's
prompt than by sending it. Without tenants all callers are one; then a salt hides what was sent with it from all who do
not know it. Cost: the tokens that the tenant sent lately, see prefix_history.
"""

from array import array
from collections.abc import Iterable, Sequence

from scheduler_svc.core.page_hash import hash_pages
from scheduler_svc.core.prefix_history import Sent
from scheduler_svc.core.types import PageExplanation, PageHash, PageStatus, PrefixQuestion
from scheduler_svc.core.worker import Worker


def explain(
    question: PrefixQuestion, workers: Sequence[Worker], sent: Iterable[Sent], size: int
) -> list[PageExplanation]:
    """One explanation a page, in order; ``sent`` is what the asking tenant sent, ``size`` a page's tokens."""
    names = question.page_hashes
    num_hits = _num_leading(workers, names)
    own: Sent | None = None
    other: Sent | None = None
    num_own = num_other = 0
    for each in sent:
        num_common = _num_common(question.prompt, each)
        if each.root == question.root_hash:
            if num_common > num_own:
                own, num_own = each, num_common
        elif num_common > num_other and (question.tenant or each.root == question.unsalted_root):
            other, num_other = each, num_common
    num_salted = 0 if other is None else _num_leading(workers, _names(question.prompt, other.root, num_other, size))
    diverged_at = _diverged_at(question.prompt, own, num_own, size)
    pages = []
    for index, name in enumerate(names):
        if index < num_hits:
            pages.append(PageExplanation(PageStatus.HIT))
        elif (index + 1) * size <= num_own and any(worker.pool.was_evicted(name) for worker in workers):
            pages.append(PageExplanation(PageStatus.EVICTED))
        elif index < num_salted:
            pages.append(PageExplanation(PageStatus.SALTED))
        elif diverged_at is not None and index == diverged_at // size:
            pages.append(PageExplanation(PageStatus.DIVERGED, diverged_at))
        else:
            pages.append(PageExplanation(PageStatus.COLD))
    if len(question.prompt) % size:
        pages.append(PageExplanation(PageStatus.TAIL_NOT_FULL))
    return pages


def _num_leading(workers: Sequence[Worker], names: Sequence[PageHash]) -> int:
    """Pages that the worker with the longest leading run of them has."""
    return max((len(worker.pool.cache.match(names)) for worker in workers), default=0)


def _names(prompt: "array[int]", root: bytes, num_tokens: int, size: int) -> list[PageHash]:
    return hash_pages(root, prompt[:num_tokens], size)


def _diverged_at(prompt: "array[int]", closest: Sent | None, num_common: int, size: int) -> int | None:
    """The first token at which a prompt differs from the closest one; None if one is the other's beginning.

    Of the first page at least half has to agree: most prompts have a few special tokens in common.
    """
    if closest is None or num_common in (len(prompt), closest.num_tokens) or 2 * num_common < size:
        return None
    return num_common


def _num_common(prompt: "array[int]", sent: Sent) -> int:
    """Leading tokens that a prompt has in common with a request's prompt and output."""
    num_common = _num_equal(prompt, sent.prompt)
    if num_common == len(sent.prompt):
        num_common += _num_equal(prompt[num_common:], sent.output)
    return num_common


def _num_equal(first: "array[int]", second: "array[int]") -> int:
    """Leading entries that are equal."""
    count = min(len(first), len(second))
    if first[:1] != second[:1]:
        return 0
    differing = int.from_bytes(first[:count].tobytes(), "little") ^ int.from_bytes(second[:count].tobytes(), "little")
    lowest_bit = (differing & -differing).bit_length() - 1
    return count if not differing else lowest_bit // (8 * first.itemsize)
