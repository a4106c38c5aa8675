"""``python -m scheduler_svc.replay FILE``: lives a traced life again, call by call, and compares what the core answers.

With limits that differ from the recorded ones it tells what would have been (what_if.py): the same arrivals, the same
lengths, steps as long as the recorded ones say.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from scheduler_svc import trace_format
from scheduler_svc.core.errors import CoreError
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CoreConfig, EndReason
from scheduler_svc.trace_format import TraceError
from scheduler_svc.what_if import History, compare

_HAS_ENDS = f'"{trace_format.ENDS}":['
_LIMITS = {"max_num_seqs": 1, "max_num_batched_tokens": 1, "long_prefill_token_threshold": 0, "max_steps_in_flight": 1}
"""What may differ from the recorded run, and the least of each."""


class _UsageError(Exception):
    """What the caller wrote is wrong; the message is one line."""


class _OneLineParser(argparse.ArgumentParser):
    """Needs no package, as nothing here does: a trace is replayed anywhere."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One line: a call, what it was about, and what the core answered this time."""

    number: int
    name: str
    now: float
    subject: Any
    """A request, card, result, key or worker id."""
    detail: Any
    """The second argument of ``cancel`` and ``stop``."""
    answer: Any
    """None: it was refused."""
    is_equal: bool
    """The answer is the recorded one."""


class Replay:
    """The calls of a trace, answered again as they are read."""

    def __init__(self, path: Path) -> None:
        """Raises: TraceError, OSError."""
        self._ends = {key: mark for line in _read_lines(path, _HAS_ENDS) for key, mark in line[2][trace_format.ENDS]}
        self._lines = _read_lines(path)
        self.config: CoreConfig = trace_format.read_header(next(self._lines, None))
        self.core = Scheduler(self.config)
        self._page_size = 0

    def __iter__(self) -> Iterator[Call]:
        """Raises: TraceError at a line that is none."""
        for number, line in enumerate(self._lines, 2):
            try:
                name, now, written, recorded = line
                subject, detail = self._read(name, written)
            except (KeyError, TypeError, ValueError) as error:
                raise TraceError(f"line {number} is not a call: {error}") from error
            answer, outcome = self._call(name, subject, detail, now)
            yield Call(
                number=number,
                name=name,
                now=now,
                subject=subject,
                detail=detail,
                answer=answer,
                is_equal=outcome == recorded,
            )

    def _read(self, name: str, written: Any) -> tuple[Any, Any]:
        """A line's arguments."""
        if name == "submit":
            return trace_format.read_request(written, self._page_size, self._ends), None
        if name == "add_worker":
            card = trace_format.read_card(written)
            self._page_size = self._page_size or card.page_size
            return card, None
        if name == "commit":
            return trace_format.read_result(written), None
        if name == "update_limits":
            return trace_format.read_limits(written), None
        if name == "pin":
            return trace_format.read_pin(written, self._page_size), None
        if name == "unpin":
            tenant, pin_id = written[0]
            return (tenant, pin_id), None
        if name not in (
            "cancel",
            "stop",
            "scanned",
            "remove_worker",
            "plan",
            "expire",
            "reset_prefix_cache",
            "take_names",
        ):
            raise ValueError(f"there is no {name!r}")
        subject, detail = (*written, None, None)[:2]
        return subject, EndReason(detail) if name == "cancel" else detail

    def _call(self, name: str, subject: Any, detail: Any, now: float) -> tuple[Any, str]:
        """The core's answer, None if it refuses, and what a trace says of it."""
        arguments = [each for each in (subject, detail) if each is not None]
        try:
            answer = getattr(self.core, name)(*arguments, now)
        except CoreError as error:
            return None, type(error).__name__
        return answer, trace_format.digest_of(answer)


def _read_lines(path: Path, holding: str = "") -> Iterator[Any]:
    """The lines of a trace that hold a text; one that was cut off at the end of the file is left out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if holding in line and line.endswith("\n"):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise TraceError(f"not JSON: {error}") from error


def main(arguments: Sequence[str]) -> int:
    """0: every answer was the recorded one (or there were other limits); 1: not; 2: no trace."""
    parser = _OneLineParser(
        prog="pagewire replay", allow_abbrev=False, description="Replay a trace of the scheduler's core."
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    for name in _LIMITS:
        parser.add_argument("--" + name.replace("_", "-"), metavar="N", help="what if it had been so")
    try:
        options = parser.parse_args(arguments)
        changes = _changes({name: getattr(options, name) for name in _LIMITS})
    except _UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        return _run(options.file, changes, options.json)
    except (TraceError, OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        print(f"error: {options.file}: {reason}", file=sys.stderr)
        return 2


def _changes(given: Mapping[str, str | None]) -> dict[str, int]:
    """The limits that were given. Raises: _UsageError."""
    changes = {}
    for name, text in given.items():
        if text is None:
            continue
        if not (text.isascii() and text.isdigit() and _LIMITS[name] <= int(text) < 2**31):
            flag = "--" + name.replace("_", "-")
            raise _UsageError(f"{flag} {text}: must be an integer from {_LIMITS[name]} to {2**31 - 1}")
        changes[name] = int(text)
    return changes


def _run(path: Path, changes: dict[str, int], as_json: bool) -> int:
    replay, history = Replay(path), History()
    num_calls, differing = 0, 0
    for call in replay:
        num_calls += 1
        differing = differing or (0 if call.is_equal else call.number)
        history.note(call.name, call.now, call.subject, call.detail, call.answer)
    counts = replay.core.counts()
    report: dict[str, Any] = {"calls": num_calls, "steps": counts.num_steps, "equal": not differing}
    if differing:
        report["first_difference_in_line"] = differing
    if changes:
        report["what_if"] = compare(history, replay.config, changes)
    _print(report, as_json)
    return 1 if differing else 0


def _print(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(report))
        return
    table = report.pop("what_if", None)
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in report.items()))
    if table is not None:
        names = list(table)
        print(f"{'':24}" + "".join(f"{name:>24}" for name in names))
        for row in table[names[0]]:
            print(f"{row.replace('_', ' '):24}" + "".join(f"{table[name][row]:>24}" for name in names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
