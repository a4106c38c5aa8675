"""Names of pages."""

import subprocess
import sys
from array import array
from random import Random

import pytest

from scheduler_svc.core.accounts import Accounts
from scheduler_svc.core.page_hash import HASH_BYTES, NO_PARENT, hash_pages, root_hash
from scheduler_svc.core.request import Request
from scheduler_svc.core.types import NewRequest, PageHash, RequestKey

ROOT = root_hash(b"key", "salt", "model", "adapter")


def names(token_ids: list[int], page_size: int = 4, root: bytes = ROOT) -> list[PageHash]:
    return hash_pages(root, array("i", token_ids), page_size)


def test_pfx_09_neighbouring_changes_change_the_name() -> None:
    """A sum that stays the same must not hide a change, as in polynomial hashes."""
    page = list(range(100, 116))
    pages = [page]
    for index in range(15):
        changed = page.copy()
        changed[index] += 31
        changed[index + 1] -= 1
        pages.append(changed)
    assert len({names(one, 16)[0] for one in pages}) == 16


def test_pfx_09_token_ids_have_a_fixed_width() -> None:
    assert names([1, 23], 2) != names([12, 3], 2)
    assert names([0, 0, 1], 3) != names([0, 1, 0], 3)
    wide = [names([token_id, 0], 2)[0] for token_id in (1, 256, 65535, 65536, 2**24, 2**31 - 1)]
    assert len(set(wide)) == len(wide)
    with pytest.raises(OverflowError):
        array("i", [2**31])


def test_pfx_09_a_first_page_differs_from_one_whose_parent_is_all_zero() -> None:
    tokens = array("i", [1, 2, 3, 4])
    assert hash_pages(ROOT, tokens, 4) != hash_pages(ROOT, tokens, 4, parent=NO_PARENT)


def test_pfx_09_random_pages_do_not_collide() -> None:
    random = Random(20)
    tokens = array("i", [random.randrange(300) for _ in range(16 * 40_000)])
    chained = hash_pages(ROOT, tokens, 16)
    assert len(set(chained)) == 40_000
    assert {len(name) for name in chained} == {HASH_BYTES}


def test_pfx_09_every_process_gives_the_same_names() -> None:
    code = (
        "from array import array; from scheduler_svc.core.page_hash import hash_pages, root_hash;"
        "print(hash_pages(root_hash(b'key', 'salt', 'model', 'adapter'), array('i', range(40)), 16)[-1].hex())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout.strip()
        for seed in ("0", "1")
    }
    assert outputs == {names(list(range(40)), 16)[-1].hex()}


def test_a_root_keeps_its_fields_apart() -> None:
    roots = {
        root_hash(b"key", "ab", "c", ""),
        root_hash(b"key", "a", "bc", ""),
        root_hash(b"key", "", "ab", "c"),
        root_hash(b"other", "ab", "c", ""),
    }
    assert len(roots) == 4
    assert len({names([1, 2, 3, 4], root=root)[0] for root in roots}) == 4


def test_only_full_pages_have_names_and_a_name_covers_all_tokens_before() -> None:
    assert names([1, 2, 3]) == []
    assert len(names(list(range(11)))) == 2
    assert names([0, 2, 3, 4, 5, 6, 7, 8])[1] != names([1, 2, 3, 4, 5, 6, 7, 8])[1]


def test_a_chain_can_be_continued() -> None:
    whole = names(list(range(20)))
    assert hash_pages(ROOT, array("i", range(20)), 4, parent=whole[1], start_page=2) == whole[2:]
    assert hash_pages(ROOT, array("i", range(8, 20)), 4, parent=whole[1]) == whole[2:]


def test_names_do_not_depend_on_the_hosts_byte_order(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = array("i", [1, 2, 3, 4])
    swapped.byteswap()
    little = names([1, 2, 3, 4])
    monkeypatch.setattr("scheduler_svc.core.page_hash._FOREIGN_ORDER", True)
    assert names(list(swapped)) == little


def test_a_request_names_a_page_without_keeping_the_name() -> None:
    prompt = array("i", range(10))
    new = NewRequest(key=RequestKey(1), prompt=prompt, page_hashes=names([*range(8)]), root_hash=ROOT, max_tokens=9)
    account = Accounts({}, by_tenant=False).of("")
    request = Request(new, (0.0, 0.0, 1), account, priority=0, use_cache=True, now=0.0)
    request.output.extend([10, 11, 12])
    chain = names([*range(12)])
    assert [request.name_at(index, 4) for index in range(4)] == [*chain, None]
    assert request.hashes == chain[:2]
    uncached = Request(new, (0.0, 0.0, 2), account, priority=0, use_cache=False, now=0.0)
    assert uncached.name_at(0, 4) is None
