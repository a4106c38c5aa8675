"""Limits that change while the core lives, and a prefix cache that is emptied."""

import json
from pathlib import Path
from typing import Any

from support.core_transcript import check_transcript

from scheduler_svc.core.types import CoreConfig, LiveLimits
from scheduler_svc.replay import Replay
from scheduler_svc.traced_core import TracedCore


def test_fewer_rows_let_what_runs_go_on_and_nothing_begin() -> None:
    check_transcript("""
    core rows=4
    worker w pages=32 size=4
    submit a 1 max=3
    submit b 2 max=2
    steps 1
    limits rows=1
    submit c 3 max=2
    steps 1
    steps 1
    steps 1
    counts
    limits rows=4
    submit d 4 max=1
    submit e 5 max=1
    plan
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 1; b on row 1 page 1 computes 1
    step 1: a0 b0
    a prefilled 1 of 1
    b prefilled 1 of 1
    step 2: a,b decode
    step 2: a1 b1
    b ended: length, 2 tokens, in decode
    step 3: row 1 released; a decodes
    step 3: a2
    a ended: length, 3 tokens, in decode
    c admitted on w, 0 cached
    step 4: row 0 released; c on row 0 page 0 computes 1
    step 4: c0
    c prefilled 1 of 1
    running 1, waiting 0, preemptions 0, computed_tokens 6, output_tokens 6, cached_tokens 0, wasted_tokens 0
    d admitted on w, 0 cached
    e admitted on w, 0 cached
    step 5: d on row 1 page 1 computes 1; e on row 2 page 2 computes 1; c decodes
    """)


def test_a_smaller_step_and_a_queue_that_is_full_now() -> None:
    check_transcript("""
    core tokens=16 rows=1
    worker w pages=32 size=4
    limits tokens=4 queue=1
    submit a 1..10 max=1
    steps 3
    submit b 1 max=9
    submit c 1 max=9
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 4
    step 1: no tokens
    a prefilled 4 of 10
    step 2: a page 1 computes 4; published 0
    step 2: no tokens
    a prefilled 8 of 10
    step 3: a page 2 computes 2; published 1
    step 3: a0
    a prefilled 10 of 10
    a ended: length, 1 tokens, in decode
    RequestRejected: 1 requests are waiting already
    """)


def test_limits_beyond_the_start_are_refused_and_a_worker_that_comes_later_knows_both() -> None:
    check_transcript("""
    core tokens=16 rows=2
    limits rows=3
    limits rows=0
    limits tokens=17
    limits rows=1
    worker w pages=32 size=4
    submit a 1 max=9
    submit b 2 max=9
    plan
    limits rows=2
    plan
    ----
    ValueError: max_num_seqs must lie in 1..2
    ValueError: max_num_seqs must lie in 1..2
    ValueError: max_num_batched_tokens must lie in 1..16
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 1
    b admitted on w, 0 cached
    step 2: b on row 1 page 1 computes 1; a decodes
    """)


def test_a_reset_frees_what_nobody_uses_and_keeps_what_runs() -> None:
    check_transcript("""
    core
    worker w pages=8 size=4
    submit a 1..9 max=1
    run
    submit b 21..29 max=9
    steps 1
    pages
    reset
    pages
    reset
    submit c 1..9 max=1
    run
    ----
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    b admitted on w, 0 cached
    step 2: row 0 released; b on row 0 pages 2,3,4 computes 9; published 0,1
    step 2: b0
    b prefilled 9 of 9
    3 free, 3 held, 2 cached
    2 pages freed
    5 free, 3 held, 0 cached
    0 pages freed
    8 steps: b +8, c +1
    c ended: length, 1 tokens, in decode
    b ended: length, 9 tokens, in decode
    """)


def test_a_trace_holds_both(tmp_path: Path) -> None:
    lines: list[Any] = []
    core = TracedCore(CoreConfig(max_num_batched_tokens=16, max_num_seqs=4), lines.append)
    limits = LiveLimits(max_num_seqs=2, max_num_batched_tokens=8, max_queued_requests=3, max_queued_tokens=0)
    core.update_limits(limits, 1.0)
    assert core.reset_prefix_cache(2.0) == 0
    path = tmp_path / "trace"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    replay = Replay(path)
    assert [(call.name, call.is_equal) for call in replay] == [("update_limits", True), ("reset_prefix_cache", True)]
    assert replay.core.limits == limits
    assert (replay.core.started.max_num_seqs, replay.core.started.max_num_batched_tokens) == (4, 16)
