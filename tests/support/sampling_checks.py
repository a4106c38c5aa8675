"""Sampling behaviour every kernel set has to show: who is kept, who wins, and what a broken row does to others."""

import torch
from pagewire_kernels import KernelSet
from pagewire_kernels.reference import truncation_threshold
from pagewire_kernels.triton import TritonKernels
from pagewire_kernels.triton.truncated_choice import choose_truncated
from support.kernel_cases import sampling_batch, seeded
from support.kernel_checks import check_samples, padded_vocabulary, random_logits

PARAMETERS: tuple[dict[str, float], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 5.0, "top_p": 1e-9},
    {"temperature": 5.0, "top_k": 1},
    {"temperature": 5.0, "min_p": 1.0},
    {"temperature": 1e-10},
    {"temperature": 1e-38, "top_p": 0.9},
)


def check_many_seeds(
    kernels: KernelSet, parameters: dict[str, float], dtype: torch.dtype, device: str = "cpu", rows: int = 16
) -> None:
    logits = random_logits(rows, 5000, dtype, device)
    seeds = [(row * 0x9E3779B97F4A7C15) % 2**63 - (2**63 if row % 2 else 0) for row in range(rows)]
    batch = sampling_batch(rows, device, seeds=seeds, output_index=3, output_position=70_000, **parameters)
    token_ids = check_samples(kernels, logits, batch)
    one_left = {"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1.0}
    greedy = parameters["temperature"] < 1e-6 or any(choice.items() <= parameters.items() for choice in one_left)
    if greedy and dtype == torch.float32:
        assert token_ids.tolist() == logits.argmax(dim=1).tolist()


def rows_of_all_kinds(vocab: int, dtype: torch.dtype, device: str = "cpu") -> torch.Tensor:
    """Logits [10, vocab] whose truncation differs in kind: near and far from uniform, with few likely tokens, negative
    throughout, with ties, masks and infinities."""
    normal = torch.randn(10, vocab, generator=seeded(vocab)) * torch.tensor([1, 3, 0.01, 1, 1, 10, 1, 1, 3, 0])[:, None]
    normal[3, ::97] += 14.0
    normal[4] -= 100.0
    normal[6] = normal[6].round()
    normal[7, 20:] = float("-inf")
    normal[8, ::2] = float("-inf")
    normal[9, 5] = float("inf")
    return normal.to(device, dtype)


TRUNCATIONS: tuple[dict[str, float], ...] = (
    {"temperature": 0.8, "top_k": 50},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.1, "top_p": 0.999},
    {"temperature": 5.0, "top_p": 0.5},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.2, "top_k": 3000, "top_p": 0.95, "min_p": 0.001},
)


def check_thresholds(vocab: int, dtype: torch.dtype, shift: int, device: str = "cpu") -> list[bool]:
    """The Triton set keeps what the reference keeps of all kinds of rows, and chooses among it as the reference does.

    ``shift`` says which row has which truncation. Returns which rows had all their kept tokens listed.
    """
    logits = rows_of_all_kinds(vocab, dtype, device)
    rows = len(logits)
    truncations = [TRUNCATIONS[(row + shift) % len(TRUNCATIONS)] for row in range(rows)]
    off = {"top_k": 0.0, "top_p": 1.0, "min_p": 0.0}
    columns = {name: [{**off, **truncation}[name] for truncation in truncations] for name in ("temperature", *off)}
    batch = sampling_batch(rows, device, **columns)
    token_ids = torch.empty(rows, dtype=torch.int32, device=device)
    status = torch.empty(rows, dtype=torch.uint8, device=device)
    thresholds = choose_truncated(logits, batch, token_ids, status)
    for row, values in enumerate(logits.float()):
        temperature, top_k, top_p, min_p = (column[row] for column in columns.values())
        expected = truncation_threshold(values, temperature, int(top_k), top_p, min_p)
        possible = values > float("-inf")
        kept = (values >= thresholds[row]) & possible
        assert torch.equal(kept, (values >= expected) & possible), (row, truncations[row])
    check_samples(TritonKernels(), logits, batch)
    return (token_ids >= 0).tolist()


def check_kept_sets(kernels: KernelSet, device: str = "cpu") -> None:
    """The tokens that appear over many seeds are exactly those a hand count keeps, of logits 3, 2, 1, 0, -1."""
    kept_by = (
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 5}, {0, 1, 2, 3, 4}),
        ({"top_k": 10**9}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.8}, {0, 1}),
        ({"top_p": 0.8, "temperature": 0.5}, {0}),
        ({"top_p": 0.8, "temperature": 2.0}, {0, 1, 2}),
        ({"min_p": 0.13}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.9}, {0, 1}),
        ({"min_p": 0.3, "top_p": 0.75}, {0, 1}),
    )
    rows = 400
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]], device=device).expand(rows, 5).contiguous()
    for parameters, kept in kept_by:
        token_ids = kernels.sample(logits, sampling_batch(rows, device, **parameters))[0]
        assert set(token_ids.tolist()) == kept, parameters


def check_ties(kernels: KernelSet, device: str = "cpu") -> None:
    """The lowest id wins an argmax; all tokens at a border of top_k or min_p stay."""
    flat = torch.zeros(2, 5000, device=device)
    flat[1, [4321, 77, 4999]] = 1.0
    assert check_samples(kernels, flat, sampling_batch(2, device, temperature=0.0)).tolist() == [0, 77]
    rows = 200
    tied = torch.tensor([[1.0, 5.0, 5.0, 5.0, 0.0, -0.0]], device=device).expand(rows, 6).contiguous()
    token_ids = check_samples(kernels, tied, sampling_batch(rows, device, top_k=2))
    assert set(token_ids.tolist()) == {1, 2, 3}
    token_ids = check_samples(kernels, tied, sampling_batch(rows, device, temperature=3.0, min_p=1.0))
    assert set(token_ids.tolist()) == {1, 2, 3}
    zeros = torch.tensor([[-0.0, 0.0, -0.0, -1.0]], device=device).expand(rows, 4).contiguous()
    token_ids = check_samples(kernels, zeros, sampling_batch(rows, device, top_k=1))
    assert set(token_ids.tolist()) == {0, 1, 2}


def check_broken_rows(kernels: KernelSet, device: str = "cpu") -> None:
    """A NaN is reported for its row alone; infinities are no error; masked tokens never win."""
    logits = random_logits(5, 3000, device=device)
    clean = logits.clone()
    logits[1, 2999] = float("nan")
    logits[2] = float("nan")
    logits[3, :2990] = float("-inf")
    logits[4, 7] = float("inf")
    for parameters in ({"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 20, "top_p": 0.9}):
        batch = sampling_batch(5, device, **parameters)
        token_ids, status = kernels.sample(logits, batch)
        assert status.tolist() == [0, 1, 1, 0, 0]
        assert bool(((token_ids >= 0) & (token_ids < 3000)).all())
        assert int(token_ids[0]) == int(kernels.sample(clean, batch)[0][0])
        assert int(token_ids[3]) >= 2990
        assert int(token_ids[4]) == 7


def check_mixed_rows(kernels: KernelSet, device: str = "cpu") -> None:
    """Rows with different parameters keep their own, and each equals the row sampled alone."""
    logits = random_logits(6, 2500, device=device)
    columns = {
        "temperature": [0.0, 1.0, 0.5, 2.0, 1.0, 0.0],
        "top_k": [0, 0, 3, 50, 0, 7],
        "top_p": [1.0, 1.0, 0.9, 0.5, 0.95, 0.1],
        "min_p": [0.0, 0.0, 0.0, 0.02, 0.1, 0.5],
    }
    seeds = [5, 5, 6, 7, 2**62, -1]
    token_ids = check_samples(kernels, logits, sampling_batch(6, device, seeds=seeds, **columns))
    for row in range(6):
        alone = sampling_batch(1, device, seeds=[seeds[row]], **{name: values[row] for name, values in columns.items()})
        assert int(kernels.sample(logits[row : row + 1], alone)[0][0]) == int(token_ids[row])


def check_padded_vocabulary(kernels: KernelSet, device: str = "cpu") -> None:
    """Columns past the vocabulary are never sampled, whatever they hold."""
    logits = padded_vocabulary(24, 301, device)
    for parameters in ({"temperature": 0.0}, {"temperature": 5.0}, {"temperature": 5.0, "top_k": 301, "top_p": 0.99}):
        check_samples(kernels, logits, sampling_batch(24, device, **parameters))


def check_distribution(kernels: KernelSet, device: str = "cpu", rows: int = 2000) -> None:
    """Chi-square of the sampled ids against exact probabilities: at most 7 degrees of freedom, 1 in 100,000."""
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, 0.0, 1.0], device=device)
    for parameters in (
        {"temperature": 1.0},
        {"temperature": 0.6, "top_p": 0.9},
        {"temperature": 2.0, "top_k": 5},
        {"temperature": 1.3, "min_p": 0.2, "top_p": 0.95, "top_k": 6},
    ):
        batch = sampling_batch(rows, device, output_index=1, output_position=9, **parameters)
        token_ids = kernels.sample(logits.expand(rows, 8).contiguous(), batch)[0]
        counts = torch.bincount(token_ids.long().cpu(), minlength=8).double()
        numbers = (float(parameters.get(name, off)) for name, off in (("top_p", 1.0), ("min_p", 0.0)))
        threshold = truncation_threshold(logits, parameters["temperature"], int(parameters.get("top_k", 0)), *numbers)
        kept = (logits >= threshold).cpu()
        scaled = (logits.double() / parameters["temperature"]).cpu().masked_fill(~kept, float("-inf"))
        expected = torch.softmax(scaled, dim=0) * rows
        assert counts[~kept].sum() == 0
        assert float(((counts - expected).square() / expected)[kept].sum()) < 35.0, parameters
