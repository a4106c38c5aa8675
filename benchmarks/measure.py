"""What is measured and how it is written down: CPU seconds, percentiles, and the rows of a result file.

Definitions. TTFT: first token received minus request sent. TPOT: (last token minus first token) / (tokens - 1), a
request. ITL: every gap between messages that carry tokens; a message of several tokens counts once, so the tokens per
message stand beside it. Output tokens/s: all output tokens / wall time; of watched streams, theirs / the time until the
last of them ended. Goodput: requests a second that met both GOOD_TTFT_S and GOOD_TPOT_S. A run is disturbed when other
processes used a noticeable share of the machine, so their CPU seconds stand in every row.
"""

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType

from benchmarks.workloads import Workload

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
GOOD_TTFT_S, GOOD_TPOT_S = 0.2, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimes:
    """When one request was sent and when its messages came: (time, tokens in it), tokens at least one."""

    sent: float
    messages: Sequence[tuple[float, int]]

    @property
    def num_tokens(self) -> int:
        return sum(count for _, count in self.messages)

    @property
    def ttft_s(self) -> float:
        return self.messages[0][0] - self.sent

    @property
    def tpot_s(self) -> float:
        return (self.messages[-1][0] - self.messages[0][0]) / max(1, self.num_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an engine did with a workload once."""

    wall_s: float
    outputs: Sequence[Sequence[int]]
    """Output ids by prompt; empty lists where the engine returns text alone."""
    num_output_tokens: int
    num_cached_tokens: int | None = None
    streams: Sequence[StreamTimes] = ()
    first_token_s: float | None = None
    """Least time of the workload's requests for a first token alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of one run."""

    engine: str
    version: str
    model: str
    dtype: str
    workload: str
    repetition: int
    metric: str
    value: float
    unit: str
    commit: str
    date: str
    machine: str
    wall_s: float
    own_cpu_s: float
    other_cpu_s: float
    settings: str = ""
    quantization: str = ""
    floor_share: float | None = None
    """What bytes and operations alone would take, over what it took; of whole workloads on a GPU."""


@dataclass(slots=True)
class CpuMeter:
    """Counts CPU seconds of some processes with their descendants, and of everything else, while it is entered."""

    roots: Callable[[], Sequence[int]]
    own_cpu_s: float = 0.0
    other_cpu_s: float = 0.0
    _started: tuple[float, float] = field(default=(0.0, 0.0), init=False)

    def __enter__(self) -> "CpuMeter":
        self._started = (_tree_seconds(self.roots()), _machine_seconds())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        own, machine = self._started
        self.own_cpu_s = _tree_seconds(self.roots()) - own
        self.other_cpu_s = max(0.0, _machine_seconds() - machine - self.own_cpu_s)


def descendants(roots: Sequence[int]) -> list[int]:
    """``roots`` and all their living descendants, parents first."""
    children: dict[int, list[int]] = {}
    for pid, fields in _stats():
        children.setdefault(int(fields[1]), []).append(pid)
    found = list(dict.fromkeys(roots))
    for pid in found:
        found.extend(child for child in children.get(pid, ()) if child not in found)
    return found


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Of each process its id and the fields of its stat line from the state on."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "stat").read_text()
            except OSError:
                continue
            yield int(entry.name), line.rsplit(")", 1)[1].split()


def _tree_seconds(roots: Sequence[int]) -> float:
    """CPU seconds of the roots' descendants and of this process, its children apart."""
    wanted = set(descendants(roots)) - {os.getpid()}
    ticks = sum(sum(map(int, fields[11:15])) for pid, fields in _stats() if pid in wanted)
    return ticks / _TICKS + time.process_time()


def _machine_seconds() -> float:
    """Seconds all cores were busy since boot, time stolen by a hypervisor included."""
    user, nice, system, _idle, _wait, interrupt, soft, steal = map(
        int, (_PROC / "stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + interrupt + soft + steal) / _TICKS


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between the two nearest of ``values``, which must not be empty."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def figures(workload: Workload, outcome: Outcome) -> dict[str, tuple[float, str]]:
    """Name to (value, unit) of everything a run tells."""
    wall = outcome.wall_s
    made = {
        "output_tokens_per_s": (outcome.num_output_tokens / wall, "tok/s"),
        "total_tokens_per_s": ((workload.num_prompt_tokens + outcome.num_output_tokens) / wall, "tok/s"),
        "requests_per_s": (len(workload.requests) / wall, "1/s"),
        "time": (wall, "s"),
    }
    if outcome.num_cached_tokens is not None:
        made["cached_tokens"] = (float(outcome.num_cached_tokens), "tok")
    if outcome.first_token_s is not None:
        made["ttft"] = (outcome.first_token_s * 1e3, "ms")
        made["tpot"] = ((wall - outcome.first_token_s) / (outcome.num_output_tokens - 1) * 1e3, "ms")
    if outcome.streams:
        watched = outcome.streams[: workload.num_watched or None]
        made.update(_stream_figures(watched))
        if workload.num_watched:
            seconds = max(each.messages[-1][0] for each in watched) - min(each.sent for each in watched)
            made["output_tokens_per_s"] = (sum(each.num_tokens for each in watched) / seconds, "tok/s")
        good = sum(each.ttft_s <= GOOD_TTFT_S and each.tpot_s <= GOOD_TPOT_S for each in outcome.streams)
        made["goodput"] = (good / wall, "1/s")
    return made


def _stream_figures(streams: Sequence[StreamTimes]) -> dict[str, tuple[float, str]]:
    answered = [stream for stream in streams if stream.messages]
    ttft = [stream.ttft_s for stream in answered]
    gaps = [
        after[0] - before[0]
        for stream in answered
        for before, after in zip(stream.messages, stream.messages[1:], strict=False)
    ]
    tpot = [stream.tpot_s for stream in answered if stream.num_tokens > 1]
    made: dict[str, tuple[float, str]] = {}
    for name, values in (("ttft", ttft), ("tpot", tpot), ("itl", gaps)):
        if values:
            made[f"{name}_mean"] = (statistics.fmean(values) * 1e3, "ms")
            for percent in (50, 90, 99):
                made[f"{name}_p{percent}"] = (percentile(values, percent) * 1e3, "ms")
    messages = sum(len(stream.messages) for stream in answered)
    made["tokens_per_message"] = (sum(stream.num_tokens for stream in answered) / max(1, messages), "tok")
    return made


def machine() -> str:
    """Processor and number of cores this process may use."""
    lines = (_PROC / "cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )
    return f"{model} x {len(os.sched_getaffinity(0))}"


def commit() -> str:
    """The commit of the checkout, with a plus if it was changed; empty outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    command = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def as_json(row: Row) -> dict[str, object]:
    """``row`` with its figures rounded to what they are worth."""
    values = asdict(row)
    for key in ("wall_s", "own_cpu_s", "other_cpu_s"):
        values[key] = round(values[key], 3)
    values["value"] = float(f"{row.value:.6g}")
    if row.floor_share is not None:
        values["floor_share"] = round(row.floor_share, 3)
    return values
