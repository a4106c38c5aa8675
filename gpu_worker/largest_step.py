"""Runs the step that needs the most memory, before there is a page pool, which is sized by what is left."""

import torch
from pagewire_kernels import AttentionBatch, KernelSet, SamplingBatch

from gpu_worker.models.llama import LlamaModel
from gpu_worker.page_pool import PageShape, allocate_pages


@torch.inference_mode()
def run_largest_step(
    model: LlamaModel, kernels: KernelSet, page: PageShape, num_rows: int, num_tokens: int, max_model_len: int
) -> None:
    """Compute ``num_tokens`` over ``num_rows`` sequences that all sample; each reads one page, none writes."""
    device, page_size = model.device, page.page_size
    num_rows = min(num_rows, num_tokens)
    query_len = min(num_tokens // num_rows, max_model_len)
    kv_pages = allocate_pages(1, page, device)
    batch = _attention_batch(num_rows, query_len, page_size, device)
    sampling_tokens = torch.arange(num_rows, dtype=torch.int64, device=device) * query_len
    token_ids = torch.zeros(num_rows * query_len, dtype=torch.int32, device=device)
    logits = model.forward(token_ids, batch, kv_pages, sampling_tokens)
    kernels.sample(logits, _sampling_batch(num_rows, device))
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _attention_batch(num_rows: int, query_len: int, page_size: int, device: torch.device) -> AttentionBatch:
    int32 = torch.int32
    return AttentionBatch(
        page_tables=torch.zeros(num_rows, -(-query_len // page_size), dtype=int32, device=device),
        query_starts=torch.arange(0, (num_rows + 1) * query_len, query_len, dtype=int32, device=device)[: num_rows + 1],
        kv_lens=torch.full((num_rows,), query_len, dtype=int32, device=device),
        positions=torch.arange(query_len, dtype=int32, device=device).repeat(num_rows),
        slots=torch.full((num_rows * query_len,), -1, dtype=torch.int64, device=device),
        num_decodes=num_rows if query_len == 1 else 0,
        max_query_len=query_len,
        max_kv_len=query_len,
    )


def _sampling_batch(num_rows: int, device: torch.device) -> SamplingBatch:
    ones = torch.ones(num_rows, dtype=torch.float32, device=device)
    zeros = torch.zeros(num_rows, dtype=torch.int32, device=device)
    return SamplingBatch(
        temperature=ones,
        top_k=zeros + 20,
        top_p=ones * 0.9,
        min_p=ones * 0,
        seeds=zeros.to(torch.int64),
        output_index=zeros,
        output_positions=zeros,
        all_greedy=False,
        any_truncation=True,
    )
