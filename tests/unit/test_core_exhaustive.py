"""Three requests on six pages, two steps in flight, and one thing going wrong at every moment there is."""

import pytest
from support.core_bench import CoreBench, card, config

PROMPTS = ([1, 2, 3, 4, 5], [1, 2, 3, 4, 6, 7], [8, 9])


def troubles(bench: CoreBench, kind: str, key: int) -> None:
    if kind == "cancel":
        bench.cancel(key)
    elif kind == "stop":
        bench.stop(key, max(0, len(bench.outputs[key]) - 1))
    elif kind == "preempt":
        bench.submit(10 + key, [30 + key, 40, 50], 2, stops=(), priority=1)
    elif kind == "lose":
        bench.lose()
        bench.join(card(pages=6, size=2))
    elif bench.workers["w"].plans:  # type: ignore[index]
        plan = bench.workers["w"].plans[0]  # type: ignore[index]
        rows = range(3) if kind == "nan" else ()
        assert plan.num_scheduled_rows
        bench.result(failed=kind == "fail", nan_rows=[row for row in rows if row == key])


@pytest.mark.parametrize("kind", ["cancel", "stop", "preempt", "lose", "fail", "nan"])
@pytest.mark.parametrize("key", [0, 1, 2])
@pytest.mark.parametrize("caching", [True, False])
def test_trouble_at_every_moment(kind: str, key: int, caching: bool) -> None:
    """A moment is between any two calls: after plan n + 1 and before result n among them."""
    moment, happened, num_preemptions = 0, True, 0
    while happened:
        bench = CoreBench(config(tokens=4, rows=3, enable_prefix_caching=caching), card(pages=6, size=2))
        for number, prompt in enumerate(PROMPTS):
            bench.submit(number, prompt, 5, stops=(), hold=number == 1)
        happened, calls, idle = False, 0, 0
        while idle < 2 and not happened:
            if calls == moment:
                troubles(bench, kind, key)
                happened = True
            worker = bench.workers["w"]  # type: ignore[index]
            if calls % 3 < 2:
                idle = 0 if bench.plan() is not None or worker.plans else idle + 1
            elif worker.plans:
                bench.result()
            calls += 1
        bench.finish()
        num_preemptions += bench.core.counts().num_preemptions
        moment += 1
    assert moment > 20
    assert num_preemptions > moment or kind != "preempt"
