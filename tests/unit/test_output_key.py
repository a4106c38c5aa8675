"""Names of outputs: what goes in comes out, and each front gets its own."""

from array import array

import pytest
from pagewire.internal.v1 import front_pb2

from scheduler_svc import front_codec
from scheduler_svc.columns import ids_are_below
from scheduler_svc.messages import InvalidSubmission
from scheduler_svc.output_key import MAX_FRONT_KEY, MAX_FRONTS, MAX_OUTPUTS, by_front, front_key_and_index, output_key


@pytest.mark.parametrize("number", [0, 1, MAX_FRONTS - 1])
@pytest.mark.parametrize("key", [0, 1, MAX_FRONT_KEY])
@pytest.mark.parametrize("index", [0, 1, MAX_OUTPUTS - 1])
def test_a_name_holds_all_three_numbers(number: int, key: int, index: int) -> None:
    name = output_key(number, key, index)
    assert 0 <= name < 1 << 64
    assert name >> 56 == number
    assert front_key_and_index(name) == (key, index)


def test_tokens_of_one_front_stay_the_columns_they_are() -> None:
    keys, token_ids = array("Q", [output_key(200, key, 0) for key in range(5)]), array("i", range(5))
    assert [(number, *map(id, columns)) for number, *columns in by_front(keys, token_ids)] == [
        (200, id(keys), id(token_ids))
    ]


def test_tokens_of_several_fronts_are_parted_in_order() -> None:
    names = [output_key(number, key, 1) for key, number in enumerate([3, 255, 3, 0, 255])]
    parts = {number: (list(keys), list(ids)) for number, keys, ids in by_front(array("Q", names), array("i", range(5)))}
    assert parts == {0: ([names[3]], [3]), 3: ([names[0], names[2]], [0, 2]), 255: ([names[1], names[4]], [1, 4])}


def test_a_key_beyond_the_last_is_refused() -> None:
    submit = front_pb2.Submit(key=MAX_FRONT_KEY + 1, n=1, max_tokens=1, top_p=1.0)
    frame = front_pb2.FrontFrame(front_id=1, submits=[submit]).SerializeToString()
    (refused,) = front_codec.read_front_frame(frame).submissions
    assert isinstance(refused, InvalidSubmission)
    assert refused.field == "key"


@pytest.mark.parametrize("limit", [1, 151_936, 2**31 - 1])
@pytest.mark.parametrize("place", [0, 4095, 4096, 9999])
def test_ids_are_judged_wherever_they_stand(limit: int, place: int) -> None:
    signed, unsigned = array("i", [0]) * 10_000, array("I", [limit - 1]) * 10_000
    assert ids_are_below(signed, limit)
    assert ids_are_below(unsigned, limit)
    for ids, wrong in ((signed, -1), (signed, -(2**31)), (signed, limit), (unsigned, 2**31), (unsigned, 2**32 - 1)):
        right, ids[place] = ids[place], wrong
        assert not ids_are_below(ids, limit)
        ids[place] = right


def test_ids_are_checked_in_one_pass() -> None:
    assert ids_are_below(array("i"), 1)
    assert ids_are_below(array("i", [0, 9]), 10)
    assert not ids_are_below(array("i", [0, 10]), 10)
    assert not ids_are_below(array("i", [-1]), 10)
