"""The starvation bound of every policy, for any requests at any times."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.policy import order_of
from scheduler_svc.core.types import CoreConfig, NewRequest, RequestKey, SchedulingPolicy

CAPACITY = 1000
AGING = 30.0

submissions = st.lists(
    st.tuples(
        st.floats(0, 200),  # when
        st.integers(-3, 3),  # priority
        st.one_of(st.none(), st.floats(0, 500)),  # time until the deadline
        st.integers(1, CAPACITY - 1),  # prompt
        st.integers(1, 2 * CAPACITY),  # outputs
    ),
    min_size=2,
    max_size=12,
)


@given(policy=st.sampled_from(SchedulingPolicy), submitted=submissions)
def test_nobody_is_passed_by_who_comes_later_than_the_bound(
    policy: SchedulingPolicy, submitted: list[tuple[float, int, float | None, int, int]]
) -> None:
    limits = CoreConfig(max_num_batched_tokens=1, max_num_seqs=1, scheduling_policy=policy, aging_seconds=AGING)
    entries = []
    for arrival, (now, priority, patience, num_prompt, max_tokens) in enumerate(sorted(submitted, key=lambda s: s[0])):
        new = NewRequest(
            key=RequestKey(arrival),
            prompt=array("i", bytes(4 * num_prompt)),
            max_tokens=max_tokens,
            priority=priority,
            deadline=None if patience is None else now + patience,
        )
        entries.append((order_of(new, limits, CAPACITY, arrival, now), now, new))
    assert len({order for order, _, _ in entries}) == len(entries)
    for order, now, new in entries:
        for other_order, other_now, other in entries:
            levels = max(0, other.priority - new.priority)
            bound = 0.0 if policy is SchedulingPolicy.FCFS else AGING * (1 + 2 * levels)
            if other_order < order:
                assert other_now <= now + bound + 1e-9
            elif policy is not SchedulingPolicy.FCFS and other.priority > new.priority:
                assert now <= other_now - AGING + 1e-9, "the higher priority did not hold"
