"""The rows and pages of a worker without a model: every plan is checked as a real worker would, and more.

Pages hold the token ids that were computed into them, so reading a page that another request has overwritten, or a
prefix that is not the row's, is noticed. What a row samples is given by a script, so what a resumed row brings along is
checked.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Script = Callable[[tuple[int, ...], int, int, int], int]
"""(prompt, output position, output index, seed) -> token id."""

FALLBACK = 65
UNKNOWN = -1
"""What stands for a token that a failed step did not sample, and for a slot it did not write."""


class PlanRefusedError(Exception):
    """The plan breaks the protocol."""


def require(condition: object, reason: str) -> None:
    if not condition:
        raise PlanRefusedError(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    page_size: int = 16
    num_pages: int = 64
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    max_model_len: int = 512
    vocab_size: int = 300


@dataclass(slots=True, kw_only=True)
class Row:
    prompt: tuple[int, ...]
    tokens: "array[int]"
    computed: int
    output_index: int
    seed: int
    options: Any
    pages: list[int] = field(default_factory=list)
    decoding: bool = False
    failed: bool = False
    """A step of it failed; steps already in flight compute it all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One row that sampled."""

    row: int
    prompt: tuple[int, ...]
    position: int
    token_id: int
    num_logprobs: int | None = None
    """Asked for; None: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPart:
    """Prompt positions a step computed for a row that asked."""

    row: int
    num_logprobs: int
    first_position: int
    token_ids: tuple[int, ...]


def column(content: bytes, name: str, typecode: str = "i") -> "array[Any]":
    values: array[Any] = array(typecode)
    require(len(content) % values.itemsize == 0, f"{name}: {len(content)} bytes")
    values.frombytes(content)
    return values


class ScriptedRows:
    """Feed it BatchPlan messages in order; a refused one leaves it unusable until ``reset``."""

    def __init__(self, limits: Limits, script: Script) -> None:
        self.limits = limits
        self.script = script
        self.violations: list[str] = []
        """What a real worker could not have noticed: wrong tokens or pages."""
        self.num_computed_tokens = 0
        self.prompt_parts: list[PromptPart] = []
        """Of the last step."""
        self.reset()

    def reset(self) -> None:
        self.rows: dict[int, Row] = {}
        self.named: dict[int, bytes] = {}
        self._names: set[bytes] = set()
        self._num_readers = [0] * self.limits.num_pages
        """Rows that have a page in their table."""
        size = self.limits.page_size
        self.slots = [array("i", [UNKNOWN] * size) for _ in range(self.limits.num_pages)]

    def step(self, plan: Any, fails: bool = False) -> list[Sampled]:
        """Applies a plan and computes it.

        Raises: PlanRefusedError.
        """
        chunk_rows, chunk_tokens, idle = self._apply(plan)
        decoding = sorted(row for row, held in self.rows.items() if held.decoding and row not in idle)
        num_tokens = sum(chunk_tokens) + len(decoding)
        require(plan.num_scheduled_rows == len(chunk_rows) + len(decoding), "num_scheduled_rows")
        require(plan.num_scheduled_tokens == num_tokens <= self.limits.max_num_batched_tokens, "num_scheduled_tokens")
        sampled = []
        self.prompt_parts = []
        for row, count in [*zip(chunk_rows, chunk_tokens, strict=True), *((row, 1) for row in decoding)]:
            if self._compute(row, count, fails):
                sampled.append(self._sample(row, fails))
        self.num_computed_tokens += num_tokens
        return sampled

    # Applying.

    def _apply(self, plan: Any) -> "tuple[array[int], array[int], set[int]]":
        columns = {name: column(getattr(plan, name), name) for name in _INT_COLUMNS}
        columns |= {name: column(getattr(plan, name), name, "H") for name in _ROW_COLUMNS}
        for first, second in _PAIRS:
            require(len(columns[first]) == len(columns[second]), f"{first} and {second} differ in length")
        for name in ("append_pages", "copy_sources", "copy_destinations", "published_pages", "evicted_pages"):
            require(all(0 <= page < self.limits.num_pages for page in columns[name]), f"{name}: out of range")
        for row in columns["releases"]:
            require(row in self.rows, f"release of row {row}, which is not there")
            for page in self.rows.pop(row).pages:
                self._num_readers[page] -= 1
        self._name_pages(plan)
        new_rows = self._begin(plan.new_rows)
        for row, page in zip(columns["append_rows"], columns["append_pages"], strict=True):
            require(row in self.rows, f"append to row {row}, which is not there")
            require(page not in self.rows[row].pages, f"page {page} twice in row {row}")
            self.rows[row].pages.append(page)
            self._num_readers[page] += 1
        for source, destination in zip(columns["copy_sources"], columns["copy_destinations"], strict=True):
            self.slots[destination] = array("i", self.slots[source])
        for row in new_rows:
            self._check_cached(row)
        for row in columns["chunk_rows"]:
            require(row in self.rows and not self.rows[row].decoding, f"chunk of row {row}")
        require(len(set(columns["chunk_rows"])) == len(columns["chunk_rows"]), "a row has two chunks")
        idle = set(columns["idle_rows"])
        require(all(row in self.rows and self.rows[row].decoding for row in idle), "an idle row does not decode")
        return columns["chunk_rows"], columns["chunk_tokens"], idle

    def take_names(self, names: Any) -> None:
        """Applies names that no plan told; all plans have been run."""
        self._name_pages(names)

    def _name_pages(self, told: Any) -> None:
        published, parents, evicted = (column(getattr(told, name), name) for name in _NAME_COLUMNS)
        hashes = told.published_hashes
        require(len(hashes) == 16 * len(published) == 16 * len(parents), "published")
        require(len(told.parent_hashes) == 16 * list(parents).count(-1), "parent_hashes")
        for page in evicted:
            require(page in self.named, f"page {page} is evicted but has no name")
            self._names.discard(self.named.pop(page))
        for position, page in enumerate(published):
            name = hashes[16 * position : 16 * position + 16]
            require(page not in self.named, f"page {page} is published twice")
            if name in self._names:
                self.violations.append(f"two pages have the same name, one is {page}")
            if UNKNOWN in self.slots[page]:
                self.violations.append(f"page {page} is published but not full")
            self.named[page] = name
            self._names.add(name)
        for parent in parents:
            require(parent == -1 or parent in self.named, f"page {parent} is a parent and has no name")

    def _begin(self, new: Any) -> list[int]:
        rows = column(new.rows, "rows", "H")
        columns = {name: column(getattr(new, name), name) for name in _NEW_ROW_COLUMNS}
        columns["seeds"] = column(new.seeds, "seeds", "Q")
        for name in ("temperatures", "top_ps", "min_ps"):
            columns[name] = column(getattr(new, name), name, "f")
        for name, values in columns.items():
            require(name == "token_ids" or len(values) == len(rows), f"new_rows: {name} has {len(values)} entries")
        require(sum(columns["num_token_ids"]) == len(columns["token_ids"]), "new_rows: token_ids")
        require(all(0 <= token_id < self.limits.vocab_size for token_id in columns["token_ids"]), "token id")
        start = 0
        options = {each.position: each for each in new.options}
        for position, row in enumerate(rows):
            require(0 <= row < self.limits.max_num_seqs and row not in self.rows, f"new row {row}")
            end = start + columns["num_token_ids"][position]
            self._begin_row(row, columns["token_ids"][start:end], position, columns, options.get(position))
            start = end
        return list(rows)

    def _begin_row(
        self, row: int, tokens: "array[int]", position: int, columns: "dict[str, array[Any]]", options: Any
    ) -> None:
        num_prompt, cached = columns["num_prompt_tokens"][position], columns["num_cached_tokens"][position]
        require(1 <= num_prompt <= len(tokens) <= self.limits.max_model_len, f"new row {row}: lengths")
        require(0 <= cached < len(tokens), f"new row {row}: cached tokens")
        prompt = tuple(tokens[:num_prompt])
        index, seed = columns["output_indices"][position], columns["seeds"][position]
        held = Row(prompt=prompt, tokens=tokens, computed=cached, output_index=index, seed=seed, options=options)
        expected = [self._next_token(held, output) for output in range(len(tokens) - num_prompt)]
        if list(tokens[num_prompt:]) != expected:
            self.violations.append(f"row {row} came back with other output tokens than were sampled")
        self.rows[row] = held

    def _check_cached(self, row: int) -> None:
        held = self.rows[row]
        require(len(held.pages) * self.limits.page_size >= held.computed, f"row {row} has no pages for cached tokens")
        self._check_pages(row)

    # Computing.

    def _compute(self, row: int, count: int, fails: bool) -> bool:
        """Whether the row samples."""
        held, size = self.rows[row], self.limits.page_size
        end = held.computed + count
        require(count >= 1 and end <= len(held.tokens), f"row {row} does not know {count} more tokens")
        require(end <= len(held.pages) * size, f"row {row} has no page for token {end - 1}")
        require(end <= self.limits.max_model_len, f"row {row} is longer than the model allows")
        self._check_pages(row)
        held.failed |= fails
        for position in range(held.computed, end):
            page = held.pages[position // size]
            if page in self.named:
                self.violations.append(f"row {row} writes page {page}, which has a name")
            if self._num_readers[page] > 1:
                self.violations.append(f"row {row} writes page {page}, which another row reads")
            self.slots[page][position % size] = UNKNOWN if fails else held.tokens[position]
        self._note_prompt(row, held, end)
        held.computed = end
        return end == len(held.tokens)

    def _note_prompt(self, row: int, held: Row, end: int) -> None:
        if held.options is not None and held.options.HasField("prompt_logprobs"):
            ids = held.prompt[held.computed + 1 : end + 1]
            if ids:
                num = held.options.prompt_logprobs
                part = PromptPart(row=row, num_logprobs=num, first_position=held.computed + 1, token_ids=ids)
                self.prompt_parts.append(part)

    def _check_pages(self, row: int) -> None:
        """What attention would read is what the row computed or was told to find."""
        held, size = self.rows[row], self.limits.page_size
        if held.failed:
            return
        for number in range(-(-held.computed // size)):
            start, end = number * size, min(held.computed, (number + 1) * size)
            if self.slots[held.pages[number]][: end - start] != held.tokens[start:end]:
                self.violations.append(f"page {held.pages[number]} of row {row} holds other tokens")

    def _sample(self, row: int, fails: bool) -> Sampled:
        held = self.rows[row]
        position = len(held.tokens) - len(held.prompt)
        token_id = self._next_token(held, position)
        held.tokens.append(UNKNOWN if fails else token_id)
        held.decoding = True
        asks = held.options is not None and held.options.HasField("logprobs")
        return Sampled(
            row=row,
            prompt=held.prompt,
            position=position,
            token_id=token_id,
            num_logprobs=held.options.logprobs if asks else None,
        )

    def _next_token(self, held: Row, position: int) -> int:
        """The script's; in place of a stop token that comes too early, FALLBACK."""
        token_id = self.script(held.prompt, position, held.output_index, held.seed)
        options = held.options
        if options is not None and position < options.min_tokens and token_id in column(options.stop_token_ids, "ids"):
            return FALLBACK
        return token_id


_ROW_COLUMNS = ("releases", "append_rows", "chunk_rows", "idle_rows")
_NAME_COLUMNS = ("published_pages", "published_parents", "evicted_pages")
_INT_COLUMNS = (
    *("append_pages", "copy_sources", "copy_destinations", "chunk_tokens", "published_pages", "evicted_pages"),
)
_PAIRS = (("append_rows", "append_pages"), ("copy_sources", "copy_destinations"), ("chunk_rows", "chunk_tokens"))
_NEW_ROW_COLUMNS = ("num_prompt_tokens", "num_token_ids", "token_ids", "num_cached_tokens", "output_indices", "top_ks")
