"""The reference itself: against dense attention, hand-made samples, and an independent Philox in plain Python."""

import pytest
import torch
import torch.nn.functional as F
from pagewire_kernels import load_kernels
from pagewire_kernels.philox import MAX_GUMBEL, gumbel, noise_words, philox4x32
from support import sampling_checks
from support.kernel_cases import ATTENTION_CASES, AttentionCase, attention_inputs, seeded
from support.kernel_checks import REFERENCE

MASK = 0xFFFFFFFF
PI_COUNTER = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
PI_KEY = (0xA4093822, 0x299F31D0)
KNOWN_ANSWERS = (
    # Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, words
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK, MASK, MASK, MASK), (MASK, MASK), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (PI_COUNTER, PI_KEY, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
)


def plain_philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox4x32-10 in Python integers, written from the paper and not from the code under test."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        high_0, low_0 = divmod(0xD2511F53 * c0, 2**32)
        high_1, low_1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def torch_philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    words = philox4x32(
        tuple(torch.tensor(word) for word in counter),  # type: ignore[arg-type]
        tuple(torch.tensor(word) for word in key),  # type: ignore[arg-type]
    )
    return tuple(int(word) for word in words)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    assert plain_philox(counter, key) == words
    assert torch_philox(counter, key) == words


def test_kernel_sets_load_by_name() -> None:
    assert [load_kernels(name).name for name in ("triton", "reference")] == ["triton", "reference"]
    assert load_kernels("cpu").name in ("cpu", "cpu-native")
    with pytest.raises(ValueError, match="no kernel set 'cuda'"):
        load_kernels("cuda")


def test_without_a_compiler_the_cpu_set_is_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert load_kernels("cpu").name == "cpu"


def test_philox_equals_plain_python_on_random_counters() -> None:
    for numbers in torch.randint(0, 2**32, (50, 6), generator=seeded(1)).tolist():
        assert torch_philox(tuple(numbers[:4]), tuple(numbers[4:])) == plain_philox(
            tuple(numbers[:4]), tuple(numbers[4:])
        )


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, -1, -(2**63)])
def test_noise_words_follow_the_counter_layout(seed: int) -> None:
    token_ids = torch.tensor([0, 1, 2, 3, 4, 7, 151_935])
    words = noise_words(token_ids, torch.tensor(seed), torch.tensor(9), torch.tensor(2)).tolist()
    key = (seed & MASK, (seed >> 32) & MASK)
    assert words == [plain_philox((i // 4, 9, 2, 0), key)[i % 4] for i in token_ids.tolist()]


def test_noise_is_finite_for_every_word() -> None:
    extremes = gumbel(torch.tensor([0, 511, 512, MASK - 511, MASK]))
    assert bool(extremes.isfinite().all())
    assert float(extremes.max()) < MAX_GUMBEL
    assert float(extremes.max()) > MAX_GUMBEL - 0.01


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_attention_equals_dense_attention(case: AttentionCase) -> None:
    inputs = attention_inputs(case)
    actual = REFERENCE.paged_attention(inputs.q, inputs.kv_pages, inputs.batch, inputs.scale)
    first = 0
    for sequence, (query_len, kv_len) in enumerate(case.sequences):
        if kv_len and query_len:
            pages = inputs.kv_pages[inputs.batch.page_tables[sequence, : -(-kv_len // case.page_size)].long()]
            keys, values = pages.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :kv_len]
            hidden = torch.full((query_len, kv_len), float("-inf")).triu(1 + kv_len - query_len)
            q = inputs.q[first : first + query_len].transpose(0, 1)
            dense = F.scaled_dot_product_attention(
                q[None], keys[None], values[None], attn_mask=hidden, scale=inputs.scale, enable_gqa=True
            )
            torch.testing.assert_close(
                actual[first : first + query_len], dense[0].transpose(0, 1), rtol=2e-5, atol=2e-5
            )
        first += query_len


def test_smp_03_sampling_keeps_what_a_hand_count_keeps() -> None:
    sampling_checks.check_kept_sets(REFERENCE)
    sampling_checks.check_ties(REFERENCE)
    sampling_checks.check_distribution(REFERENCE)


def test_a_broken_row_affects_only_itself() -> None:
    sampling_checks.check_broken_rows(REFERENCE)
    sampling_checks.check_mixed_rows(REFERENCE)
