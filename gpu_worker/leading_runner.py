"""Rank 0's runner in a worker of several ranks: what it does, it tells the others first."""

import torch

from gpu_worker.batch_plan import BatchPlan
from gpu_worker.model_runner import ModelRunner, StepOutput
from gpu_worker.other_ranks import RESET, OtherRanks


class LeadingRunner:
    """Stands for a ModelRunner: every rank runs each plan and drops its rows where this one does."""

    def __init__(self, runner: ModelRunner, others: OtherRanks) -> None:
        self._runner = runner
        self._others = others

    @property
    def device(self) -> torch.device:
        return self._runner.device

    def reset(self) -> None:
        self._others.tell(RESET)
        self._runner.reset()

    def launch(self, plan: BatchPlan) -> StepOutput:
        """As the runner's."""
        self._others.tell(plan.frame)
        return self._runner.launch(plan)
