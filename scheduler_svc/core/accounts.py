"""What each tenant has been served, and whose turn it is: virtual token counters (Sheng et al., arXiv 2401.00588).

A tenant's counter grows with what it is charged, divided by its weight; of those that wait the one with the least
counter is next. A tenant that begins to wait starts at the least counter of those that wait already, or of the one
that stopped last: nobody saves up turns while it asks for nothing. What is charged is fairness.py's decision.

Two tenants that both keep waiting are served alike: their counters differ by no more than what one admission can
charge (a prompt) plus what one of them can run at a time.
"""

from collections.abc import Mapping
from heapq import heappop, heappush, heapreplace

_MANY = 1024


class Account:
    """One tenant's books."""

    __slots__ = (
        "_accounts",
        "_per_tenth",
        "charged",
        "counter",
        "is_listed",
        "num_live",
        "num_waiting",
        "num_waiting_tokens",
        "number",
        "weight",
    )

    def __init__(self, accounts: "Accounts", number: int, weight: float) -> None:
        self._accounts = accounts
        self._per_tenth = 0.1 / weight
        self.weight = weight
        self.number = number
        """Decides between equal counters, and makes entries unique."""
        self.counter = 0.0
        """Tokens served by weight, and what it was lifted by."""
        self.charged = 0
        """Tenths of tokens it was charged in all."""
        self.num_live = 0
        self.num_waiting = 0
        self.num_waiting_tokens = 0
        self.is_listed = False

    def charge(self, tenths: int) -> None:
        """Tenths of tokens; negative ones are given back."""
        self.charged += tenths
        self.counter += tenths * self._per_tenth

    def begin_wait(self, num_tokens: int) -> None:
        """One more request waits, with so many tokens known."""
        if self.num_waiting == 0:
            self.counter = max(self.counter, self._accounts.least())
            self._accounts.enlist(self)
        self.num_waiting += 1
        self.num_waiting_tokens += num_tokens
        self._accounts.num_waiting += 1
        self._accounts.num_waiting_tokens += num_tokens

    def end_wait(self, num_tokens: int) -> None:
        """A request waits no more."""
        self.num_waiting -= 1
        self.num_waiting_tokens -= num_tokens
        self._accounts.num_waiting -= 1
        self._accounts.num_waiting_tokens -= num_tokens
        if self.num_waiting == 0:
            self._accounts.stopped(self)


class Accounts:
    """All tenants' accounts, or one for all of them if shares do not matter."""

    __slots__ = (
        "_accounts",
        "_by_tenant",
        "_last",
        "_num_made",
        "_num_tenants",
        "_prune_at",
        "_waiting",
        "_weight",
        "_weights",
        "num_waiting",
        "num_waiting_tokens",
    )

    def __init__(self, weights: Mapping[str, float], by_tenant: bool) -> None:
        """Raises: ValueError: a weight is not positive."""
        for tenant, weight in weights.items():
            if weight <= 0:
                raise ValueError(f"the weight of tenant {tenant} must be positive")
        self._weights = weights
        self._by_tenant = by_tenant
        self._accounts: dict[str, Account] = {}
        self._num_made = 0
        self._prune_at = _MANY
        self._waiting: list[tuple[float, int, Account]] = []  # a heap; counters may have grown since
        self._last: Account | None = None
        self._num_tenants = 0  # that wait
        self._weight = 0.0  # of them all
        self.num_waiting = 0
        self.num_waiting_tokens = 0

    def of(self, tenant: str) -> Account:
        """A tenant's account."""
        name = tenant if self._by_tenant else ""
        account = self._accounts.get(name)
        if account is None:
            self._prune()
            self._num_made += 1
            account = Account(self, self._num_made, self._weights.get(name, 1.0))
            self._accounts[name] = account
        return account

    def like(self, tenant: str) -> Account:
        """A tenant's account; for one that has none one that is not kept."""
        name = tenant if self._by_tenant else ""
        return self._accounts.get(name) or Account(self, self._num_made, self._weights.get(name, 1.0))

    def __len__(self) -> int:
        return len(self._accounts)

    def charges(self) -> dict[str, float]:
        """Tokens charged by tenant, as far as they are remembered."""
        return {tenant: account.charged / 10 for tenant, account in self._accounts.items()}

    def least(self) -> float:
        """The least counter of those that wait; if nobody does, the counter of who stopped last."""
        heap = self._waiting
        while heap:
            counter, number, account = heap[0]
            if account.num_waiting == 0:
                heappop(heap)
                account.is_listed = False
            elif account.counter > counter:
                heapreplace(heap, (account.counter, number, account))
            else:
                return counter
        return 0.0 if self._last is None else self._last.counter

    def share_of(self, account: Account) -> float:
        """A tenant's share among those that wait, itself included."""
        return account.weight / (self._weight if account.num_waiting else self._weight + account.weight)

    def enlist(self, account: Account) -> None:
        """A tenant begins to wait."""
        self._num_tenants += 1
        self._weight += account.weight
        if not account.is_listed:
            account.is_listed = True
            heappush(self._waiting, (account.counter, account.number, account))

    def stopped(self, account: Account) -> None:
        """A tenant waits no more."""
        self._num_tenants -= 1
        self._weight = self._weight - account.weight if self._num_tenants else 0.0
        self._last = account

    def _prune(self) -> None:
        """Forgets tenants that would be lifted to where they would begin as new ones: nothing is lost."""
        if len(self._accounts) < self._prune_at:
            return
        least = self.least()
        self._accounts = {
            tenant: account for tenant, account in self._accounts.items() if account.num_live or account.counter > least
        }
        self._prune_at = max(_MANY, 2 * len(self._accounts))
