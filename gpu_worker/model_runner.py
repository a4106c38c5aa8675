"""Runs batch plans: rows, model and sampler of one worker.

``launch`` returns as soon as the work is queued on the device; ``StepOutput.wait`` gives the result. On a CPU the
work is done when ``launch`` returns. On a GPU a step runs as one CUDA graph where one of its shape was captured, else
operation by operation; both run ``_run``.

When a step fails, the rows' counts stay as if it had succeeded: the scheduler has planned on, the next plan may be here
already, and it releases the rows of the failed step once it hears of the failure. Those rows go on from token 0; what
they wrote is never published. The device's page tables are copied anew from the host before the next step.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from pagewire_kernels import KernelSet

from gpu_worker.batch_plan import BatchPlan, Int32s, RowIds, StepResult, empty_column
from gpu_worker.cuda_graphs import StepGraphs
from gpu_worker.errors import DeviceLostError, PlanRefusedError
from gpu_worker.logit_rules import LogitRules
from gpu_worker.logprobs import StepLogprobs, asked_outputs, sliced_logprobs
from gpu_worker.matchers import Matchers
from gpu_worker.model_inputs import DeviceRows, StepInputs, exact_shape
from gpu_worker.models.llama import LlamaModel
from gpu_worker.page_pool import copy_pages
from gpu_worker.prompt_positions import PromptPositions, prompt_positions
from gpu_worker.request_rows import RequestRows, RowLimits, StepWork
from gpu_worker.sampler import STATUS_FINE, Sampled, resample_rows, sample_rows
from gpu_worker.step_shape import GraphShapes, StepShape, lengths_differ

if TYPE_CHECKING:
    from gpu_worker.grammar_vocabulary import GrammarVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """A step that was launched."""

    plan: BatchPlan
    sampled_rows: RowIds
    packed: torch.Tensor | None
    """int32 [2, at least R] on the host: token ids and statuses, valid after the event."""
    logprobs: StepLogprobs | None = None
    started_event: "torch.cuda.Event | None" = None
    done_event: "torch.cuda.Event | None" = None
    step_us: int = 0
    failure: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether ``wait`` would not block."""
        try:
            return self.done_event is None or self.done_event.query()
        except RuntimeError:
            return True  # ``wait`` says what is wrong

    def wait(self) -> StepResult:
        """Block until the device is done. Raises DeviceLostError."""
        step_us = self.step_us
        if self.started_event is not None and self.done_event is not None:
            try:
                self.done_event.synchronize()
                step_us = int(self.started_event.elapsed_time(self.done_event) * 1000)
            except RuntimeError as error:
                raise DeviceLostError(str(error)) from None
        if self.failure is not None or self.packed is None:
            return StepResult(
                step_id=self.plan.step_id, epoch=self.plan.epoch, step_us=step_us, failure=self.failure or "no output"
            )
        token_ids, statuses = self.packed.numpy()[:, : len(self.sampled_rows)]
        return StepResult(
            step_id=self.plan.step_id,
            epoch=self.plan.epoch,
            rows=self.sampled_rows,
            token_ids=token_ids,
            statuses=statuses.astype(np.uint8).tobytes() if (statuses != STATUS_FINE).any() else b"",
            logprobs=() if self.logprobs is None else self.logprobs.rows(),
            step_us=step_us,
        )


class ModelRunner:
    """One model on one device with its page pool and rows."""

    def __init__(
        self,
        model: LlamaModel,
        kernels: KernelSet,
        kv_pages: Sequence[torch.Tensor],
        limits: RowLimits,
        device: torch.device,
        vocabulary: "GrammarVocabulary | None" = None,
    ) -> None:
        self.model = model
        self.limits = limits
        self.device = device
        self._kernels = kernels
        self._kv_pages = kv_pages
        self._rows = RequestRows(limits)
        self._device_rows = DeviceRows(self._rows, device)
        self._rules = LogitRules(self._rows, kernels, device, Matchers(vocabulary, limits.vocab_size))
        self._shapes: GraphShapes | None = None
        self.graphs = StepGraphs()
        self._stale = False
        self._uneven = False
        self.tell_done: Callable[[], None] = lambda: None
        """Called by a launch that has waited for the step before: the result of that one can leave."""

    def round_shapes(self) -> GraphShapes:
        """Round every step up to a shape that a graph could be captured for, where there is one."""
        self._shapes = GraphShapes(self.limits, self.model.group.least(self.model.num_parameters))
        return self._shapes

    @torch.inference_mode()
    def capture_graphs(self, shapes: Iterable[StepShape]) -> StepGraphs:
        """Capture a graph of each of these shapes, on a GPU before the first plan; later steps use them."""

        def prepare(shape: StepShape) -> Callable[[], Sampled]:
            inputs = self._device_rows.upload(_NO_WORK, shape)
            self._device_rows.keep(inputs)
            return lambda: self._run(inputs)

        self.graphs.capture(shapes, prepare, self.device)
        return self.graphs

    def reset(self) -> None:
        """Drop all rows; pages keep their content."""
        self._rows.reset()
        self._rules.reset()
        self._stale = True

    @torch.inference_mode()
    def launch(self, plan: BatchPlan) -> StepOutput:
        """Apply a plan and start its step.

        Raises:
            PlanRefusedError: the plan is inconsistent; nothing was computed, and the rows must be reset.
            DeviceLostError: the device cannot be used any more.
        """
        work = self._rows.advance(plan)
        try:
            return self._compute(plan, work)
        except PlanRefusedError:
            raise
        except Exception as error:  # whatever a step raises must not end the worker
            failure = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        # The exception is gone here, and with it the frames that held the step's tensors.
        if self.model.group.size > 1:
            raise DeviceLostError(failure)  # the other ranks are somewhere else in the step, or gone
        self._recover(work)
        return StepOutput(plan=plan, sampled_rows=work.sampled_rows, packed=None, failure=failure)

    def _compute(self, plan: BatchPlan, work: StepWork) -> StepOutput:
        self._rules.follow(plan)  # first: it must know of every row that ends, whatever becomes of the step
        if self._stale:
            self._device_rows.restore()
            self._stale = False
        began = time.perf_counter()
        started = self._record_event()
        prompts = prompt_positions(self._rows, work)
        shape = self._shape_of(work) if prompts is None else exact_shape(self._rows, work)
        inputs = self._device_rows.upload(work, shape)
        if len(work.copy_sources):
            copy_pages(self._kv_pages, self._page_ids(work.copy_sources), self._page_ids(work.copy_destinations))
        packed, logprobs = torch.empty(2, 0, dtype=torch.int32), None
        if plan.num_scheduled_rows:
            sampled = self._sample(inputs, prompts)
            self._apply_rules(sampled, inputs, work)
            packed, logprobs = sampled.packed, self._logprobs(sampled, prompts, work)
        on_host = self._to_host(packed)
        done = self._record_event()
        self._rules.matchers.advance(work.sampled_rows, lambda: self._tokens(on_host, done))
        return StepOutput(
            plan=plan,
            sampled_rows=work.sampled_rows,
            packed=on_host,
            logprobs=logprobs,
            started_event=started,
            done_event=done,
            step_us=int((time.perf_counter() - began) * 1e6),
        )

    def _shape_of(self, work: StepWork) -> StepShape:
        if not work.continues:
            self._uneven = lengths_differ(self._rows.num_computed[work.decode_rows])
        fitting = self._shapes.fitting(work, uneven=self._uneven) if self._shapes is not None else None
        return exact_shape(self._rows, work) if fitting is None else fitting

    def _sample(self, inputs: StepInputs, prompts: PromptPositions | None) -> Sampled:
        """The step as if no row had options, but for the prompt positions that are asked for."""
        graph = self.graphs.find(inputs.shape)
        if prompts is None:
            return self._run(inputs) if graph is None else graph.replay()
        token_ids, attention = self._device_rows.gather(inputs)
        wanted = torch.cat((inputs.sampling_tokens, self._rules.upload(prompts.tokens)))
        hidden = self.model.hidden(token_ids, attention, self._kv_pages, wanted)
        num_sampling = len(inputs.sampling_tokens)
        sampled = self._sample_logits(self.model.logits(hidden[:num_sampling]), inputs)
        return replace(sampled, prompt_hidden=hidden[num_sampling:])

    def _run(self, inputs: StepInputs) -> Sampled:
        """The step on the device, as if no row had options. Reads nothing back, so it can be captured."""
        token_ids, attention = self._device_rows.gather(inputs)
        logits = self.model.forward(token_ids, attention, self._kv_pages, inputs.sampling_tokens)
        return self._sample_logits(logits, inputs)

    def _sample_logits(self, logits: torch.Tensor, inputs: StepInputs) -> Sampled:
        if not len(logits):
            return Sampled(torch.empty(2, 0, dtype=torch.int32), logits)
        return sample_rows(
            self._kernels, logits, inputs.sampling, inputs.sampled_rows, self._device_rows.last_token_ids
        )

    def _apply_rules(self, sampled: Sampled, inputs: StepInputs, work: StepWork) -> None:
        """Sample rows with options again, as these say."""
        places = self._rules.places(work.sampled_rows)
        if len(places):
            resample_rows(self._kernels, self._rules, sampled, places, work.sampled_rows[places])
            self._device_rows.last_token_ids.index_copy_(0, inputs.sampled_rows, sampled.packed[0])

    def _logprobs(self, sampled: Sampled, prompts: PromptPositions | None, work: StepWork) -> StepLogprobs | None:
        """Log probabilities of the rows that ask; None if none does."""
        places, asked = asked_outputs(self._rows, work.sampled_rows)
        asked = [*(() if prompts is None else prompts.asked), *asked]
        if not asked:
            return None
        num_top, parts = max(each.num_top for each in asked), []
        if prompts is not None and sampled.prompt_hidden is not None:
            chosen = self._rules.upload(prompts.chosen)
            parts.append(sliced_logprobs(sampled.prompt_hidden, chosen, num_top, self.model.logits))
        if places:
            where = self._rules.upload(np.array(places, dtype=np.int64))
            chosen = sampled.packed[0].index_select(0, where).long()
            logits = sampled.logits.index_select(0, where)
            parts.append(sliced_logprobs(logits, chosen, num_top, lambda some: some))
        return StepLogprobs(asked, self._to_host(torch.cat(parts)))

    def _page_ids(self, page_ids: Int32s) -> torch.Tensor:
        column = torch.from_numpy(page_ids.astype(np.int64))
        return column if self.device.type == "cpu" else column.pin_memory().to(self.device, non_blocking=True)

    def _to_host(self, packed: torch.Tensor) -> torch.Tensor:
        if packed.device.type == "cpu":
            return packed
        target = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
        return target.copy_(packed, non_blocking=True)

    def _tokens(self, on_host: torch.Tensor, done: "torch.cuda.Event | None") -> tuple[Int32s, Int32s]:
        """Token ids and statuses of a step; waits until it is done, and lets its result leave before they are used."""
        if done is not None:
            done.synchronize()
        self.tell_done()
        token_ids, statuses = on_host.numpy()
        return token_ids, statuses

    def _record_event(self) -> "torch.cuda.Event | None":
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _recover(self, work: StepWork) -> None:
        """Make the device's rows usable after a failed step. Raises DeviceLostError if the device is not."""
        self._stale = True
        try:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
                torch.cuda.empty_cache()
            if len(work.sampled_rows):
                rows = torch.from_numpy(work.sampled_rows.astype(np.int64)).to(self.device)
                self._device_rows.last_token_ids.index_fill_(0, rows, 0)
        except RuntimeError as error:
            raise DeviceLostError(str(error)) from None


_NO_WORK = StepWork(
    decode_rows=empty_column(),
    chunk_rows=empty_column(),
    chunk_tokens=empty_column(),
    sampling_chunks=empty_column(),
    sampled_rows=empty_column(),
    append_rows=empty_column(),
    append_columns=empty_column(),
    append_pages=empty_column(),
    copy_sources=empty_column(),
    copy_destinations=empty_column(),
)
"""Of a step that is all padding."""
