# SPDX-License-Identifier: Apache-2.0
"""State of a `Parallel`, the module around a user's model that is split into stages.

- `ModelState`: settings and counters, and the stages once the model is split.
- `PartitionedModel`: stages of this rank, and the objects that run them.
- `StepProgress`: counter of steps for the progress lines that rank 0 prints.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.torch import step_report
from smdist.dataparallel.torch.training_progress import TrainingProgress, is_timed
from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.core.schedule import Schedule
from smdist.modelparallel.torch.accelerator import current_device
from smdist.modelparallel.torch.capture import Captured
from smdist.modelparallel.torch.capture.signature import SkeletonSync
from smdist.modelparallel.torch.executor import (
    Arguments,
    Executor,
    OnEvent,
    PassedOn,
    StageHooks,
)
from smdist.modelparallel.torch.executor.offload import ActivationOffload
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.parallel.plan_comparison import PlanComparison
from smdist.modelparallel.torch.parallel.settings import Settings
from smdist.modelparallel.torch.parallel.step_function import MicrobatchCall, StepFunction
from smdist.modelparallel.torch.randomness import RngStream, generators_kept, seed_generators
from smdist.modelparallel.torch.replicas import Replicas
from smdist.modelparallel.torch.replicas.master_weights import MasterWeights
from smdist.modelparallel.torch.session.process_groups import Groups
from smdist.modelparallel.torch.tensor_parallel import TensorPlan

MAX_CAPTURES = 64  # largest number of captures, by signature, that a model keeps


@dataclass(slots=True, kw_only=True)
class PartitionedModel:
    """Model that is split into stages: the stages of this rank, and the objects that run them.

    Attributes:
        model: Model of the user; tensors that only other ranks hold have no values in it.
        plan: Plan with the stages and the schedule; the same on all ranks.
        groups: Process groups for the plan.
        stages: Stages of this rank, by number.
        captured, placement: Recorded forward pass of the latest call, and the stage of each
            recorded operation.
        skeleton: Copy of the whole model whose tensors have no values.
        skeleton_sync: Object that copies changed modes and settings from the model to the skeleton.
        replicas: Object that reduces gradients over replicas.
        captures: Recorded forward passes, each with its placement, by cache key of the call. The
            recording that was not used for the longest time is first.
        compared_calls: Descriptions of the calls for which the ranks of the pipeline have already
            compared their batches.
        executors: Executors, one for each schedule. The key None is for the schedule of the plan,
            with backward passes. A number n is for forward passes of n microbatches.
        configured_for: Key in `executors`, and recorded forward pass, for which the stages are
            configured. None if they must be configured before the next step.
        on_event: Function that receives the events of all executors; None if no trace is recorded.
        listeners: Functions of this project that receive the same events.
        latest_signature: Short key of the latest call, which is quick to compute, and its cache
            key; None before the first call.
        frozen_names: Cached result of `frozen` as (version, names). The version is the skeleton's
            when the names were found.
        agreed_frozen: Names of the parameters that were frozen on all ranks in the latest step.
        tensor_plan: Plan of tensor parallelism; None if layers are whole.
        offload: Object that moves activations to the host; None to leave them on the device.
    """

    model: nn.Module
    plan: Plan
    groups: Groups
    stages: Mapping[int, StageModule]
    captured: Captured
    placement: Placement
    skeleton: nn.Module
    skeleton_sync: SkeletonSync
    replicas: Replicas
    captures: OrderedDict[Hashable, tuple[Captured, Placement]] = field(default_factory=OrderedDict)
    compared_calls: set[str] = field(default_factory=set)
    executors: dict[int | None, Executor] = field(default_factory=dict)
    configured_for: tuple[int | None, Captured] | None = None
    on_event: OnEvent | None = None
    listeners: list[OnEvent] = field(default_factory=list)
    latest_signature: tuple[Hashable, Hashable] | None = None
    frozen_names: tuple[int, tuple[str, ...]] = (-1, ())
    agreed_frozen: tuple[str, ...] = ()
    tensor_plan: TensorPlan | None = None
    offload: ActivationOffload | None = None

    @property
    def last_rank(self) -> int:
        """Pipeline rank of the last stage."""
        return self.plan.actions.rank_of[-1]

    def add_capture(self, key: Hashable, found: tuple[Captured, Placement]) -> None:
        """Cache the recorded forward pass of a call.

        If there are more than MAX_CAPTURES, the recording that was not used for the longest time is
        dropped.

        Args:
            key: Cache key of the call: its shapes, dtypes and modes.
            found: Recorded forward pass, and the stage of each recorded operation.
        """
        self.captures[key] = found
        while len(self.captures) > MAX_CAPTURES:
            self.captures.popitem(last=False)

    def use_capture(self, key: Hashable) -> tuple[Captured, Placement]:
        """Return the cached recording of a call with its placement, and mark it as used now.

        Args:
            key: Cache key of a call; it must be in `captures`.
        """
        self.captures.move_to_end(key)
        return self.captures[key]

    def mark_compared(self, description: str) -> None:
        """Record that ranks have compared the data of such a call, so need not compare it again.

        Args:
            description: Text with the shapes, dtypes and modes of the call.
        """
        if len(self.compared_calls) >= MAX_CAPTURES:
            self.compared_calls.clear()
        self.compared_calls.add(description)

    def frozen(self) -> tuple[str, ...]:
        """Return the names of all frozen parameters of the model, also of those on other ranks."""
        if self.frozen_names[0] != self.skeleton_sync.version:
            parameters = self.skeleton.named_parameters()
            names = [name for name, parameter in parameters if not parameter.requires_grad]
            self.frozen_names = self.skeleton_sync.version, tuple(names)
        return self.frozen_names[1]

    def aliases(self, name: str) -> list[str]:
        """Return all names of a parameter, including `name`; a shared parameter has several."""
        parameter = self.skeleton.get_parameter(name)
        every = self.skeleton.named_parameters(remove_duplicate=False)
        return [alias for alias, other in every if other is parameter]

    @contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """Surround a block that all ranks run: if it fails on one rank, all raise a StepError.

        Before the first step, when no executor exists, an error is raised on this rank only.

        Args:
            doing: Name of the work for the error message, such as "the sum of gradients".
        """
        executor = next(iter(self.executors.values()), None)
        with nullcontext() if executor is None else executor.guarded(doing):
            yield

    @property
    def is_recorded(self) -> bool:
        """True while the events of steps are recorded."""
        return self.on_event is not None or bool(self.listeners)

    def send_event(self, *event: Any) -> None:
        """Pass an event to `on_event` and `listeners`; do nothing if no trace is recorded.

        Args:
            event: Kind, stage, microbatch, start, end and detail of the event.
        """
        for receive in (self.on_event, *self.listeners):
            if receive is not None:
                receive(*event)

    def executor(
        self, parts: int | None, schedule: Callable[[], Schedule], hooks: StageHooks
    ) -> Executor:
        """Return the executor for training or for forward passes; make it when first needed.

        Args:
            parts: None for training. For forward passes only, the number of microbatches.
            schedule: Function that returns the schedule; called only for a new executor.
            hooks: Functions that a new executor calls before and after each backward action.
        """
        if parts not in self.executors:
            group = self.groups.of(Axis.PP)
            self.executors[parts] = Executor(
                self.stages, self.placement, schedule(), group, hooks=hooks, offload=self.offload
            )
        configured = self.configured_for
        if configured is None or configured[0] != parts or configured[1] is not self.captured:
            self.executors[parts].adopt(self.captured, self.placement)
            self.configured_for = (parts, self.captured)
        executor = self.executors[parts]
        executor.on_event = self.send_event if self.is_recorded else None  # events have a cost
        return executor


class StepProgress:
    """Counter of training steps, for the progress lines that rank 0 prints.

    The times in these lines do not include messages between stages and NCCL transfers.
    """

    def __init__(self) -> None:
        device = current_device() or torch.device("cpu")
        self._progress = TrainingProgress(counts=True, is_timed=is_timed(device))
        self._has_begun = False

    def begin(self, samples: int) -> None:
        """Count a step that begins now.

        Args:
            samples: Number of samples of the step on all replicas; 0 if unknown.
        """
        if not self._has_begun:
            self._has_begun = True
            step_report.enter(self._progress)
        if self._progress.is_current:
            self._progress.forward(samples or None, is_step=True)


_SEED_NAME: Final = ":feed"  # name from which the seed of the user's code is made; executor's


@dataclass(slots=True, kw_only=True)
class ModelState:
    """State of a `Parallel` module that changes during training.

    Attributes:
        model: Model of the user. Once it is split into stages, tensors of other ranks' stages have
            no values in it.
        settings: Settings of the `Parallel`.
        seed: Seed of random numbers.
        split: Model that is split into stages; None before the first step.
        microbatch_call: Microbatch for which the user's code is running; None if it is not running.
        step_number: Number of training steps that have finished.
        passes: Number of training steps that this process has begun, including failed ones.
        waiting: Functions to call as soon as the model is split, in order.
        is_loaded: True if one of these functions loads all parameters and buffers.
        is_returning: True while `model.backward`, called outside of a step, computes gradients.
        has_trained: True once a training batch has had the size of `global_batch_size`.
        forwards: Number of forward passes without training, by (step_number, with gradients).
        steps: Counter of steps for the progress lines of rank 0.
        plan_comparison: Comparison of the plan with the run.
    """

    model: nn.Module
    settings: Settings
    seed: int = 0
    split: PartitionedModel | None = None
    microbatch_call: MicrobatchCall | None = None
    step_number: int = 0
    passes: int = 0
    waiting: list[Callable[[], None]] = field(default_factory=list)
    is_loaded: bool = False
    is_returning: bool = False
    has_trained: bool = False
    forwards: Counter[tuple[int, bool]] = field(default_factory=Counter)
    steps: StepProgress = field(default_factory=StepProgress)
    plan_comparison: PlanComparison = field(default_factory=PlanComparison)

    @contextmanager
    def acting(self, microbatch_call: MicrobatchCall) -> Iterator[None]:
        """Handle calls of the model within the block as calls in this microbatch.

        Args:
            microbatch_call: Run of the user's code for the microbatch; its `is_open` is False after
                the block.
        """
        before, self.microbatch_call = self.microbatch_call, microbatch_call
        try:
            yield
        finally:
            self.microbatch_call, microbatch_call.is_open = before, False

    @property
    def parts(self) -> list[nn.Module]:
        """Modules of this rank: the whole model until it is split, then this rank's stages."""
        return [self.model] if self.split is None else list(self.split.stages.values())

    def local_values(self, **options: Any) -> dict[str, Any]:
        """Return the parameters and buffers on this rank, by their names in the user's model.

        The result has master weights in place of parameters in 16 bits, unless `keep_vars` is True.

        Args:
            options: Keyword arguments of `torch.nn.Module.state_dict`.
        """
        found: dict[str, Any] = options.pop("destination", None) or {}
        for part in self.parts:
            found.update(part.state_dict(**options))
        if self.masters is not None and not options.get("keep_vars"):
            for name, master in self.masters.by_name(self.parts, options.get("prefix", "")):
                found[name] = master
        return found

    @property
    def masters(self) -> MasterWeights | None:
        """Master weights of this rank; None if there are none, or the model is not split yet."""
        return None if self.split is None else self.split.replicas.masters

    def when_cut(self, function: Callable[[], None], *, loads: bool = False) -> None:
        """Call a function as soon as the model is split into stages: now, or in the first step.

        Args:
            function: Function that needs the stages.
            loads: True if the function loads all parameters and buffers.
        """
        if self.split is not None:
            function()
        else:
            self.is_loaded |= loads
            self.waiting.append(function)

    def cut_by(self, plan: Plan) -> None:
        """Set the plan by which the first step will split the model into stages.

        Raises:
            OptionError: The model is already split, or has another plan.
        """
        given = self.settings.plan
        if self.split is not None or (given is not None and given.basis != plan.basis):
            raise OptionError(
                f"{type(self.model).__name__} cannot be split by the plan of the state dict",
                "the model is already split into stages, or has another plan",
                "Load the state dict before the first step, into a model without a plan or with the"
                " same plan",
                about="plan",
                kind="conflict",
            )
        self.settings = replace(self.settings, plan=plan)

    def draws(self, microbatch: int, count: int, repeat: int = 0) -> RngStream:
        """Return the source of random numbers of one microbatch of this replica.

        Args:
            microbatch: Number of the microbatch.
            count: Number of microbatches of a replica in the step.
            repeat: Number of forward passes without training since the last training step, so that
                each pass draws other random numbers. 0 in a training step.
        """
        replica = self.split.groups.rdp_rank if self.split is not None else 0
        number = replica * count + microbatch
        return RngStream(seed=self.seed, step=self.step_number, microbatch=number, repeat=repeat)

    def catch_up(self) -> None:
        """Call the functions that `when_cut` has queued, the first one first.

        If a function raises an exception, this function and all later ones stay in the queue.
        """
        waiting, self.waiting = self.waiting, []
        for at, each in enumerate(waiting):
            try:
                each()
            except BaseException:
                self.waiting = waiting[at:] + self.waiting
                raise

    def check_caught_up(self) -> None:
        """Check that all functions that waited for the model's split into stages have run.

        Before the split, nothing is checked.

        Raises:
            OptionError: One of the functions, such as the loading of a checkpoint, has failed.
        """
        if self.split is not None and self.waiting:
            raise OptionError(
                f"{type(self.model).__name__} is not ready for a step",
                f"{len(self.waiting)} of the functions that run as soon as it is split into stages,"
                " such as the loading of a checkpoint, have not run, because one of them failed",
                "Fix the cause of that error, and start the job again",
                kind="not_ready",
            )

    def check_size(self, size: int) -> None:
        """Check the number of samples on all replicas against the option `global_batch_size`.

        The first training batch must have exactly this number. Later batches may have fewer.

        Args:
            size: Number of samples on each replica; 0 if unknown.

        Raises:
            OptionError: The batch has too many samples, or the first batch has too few.
        """
        wanted = self.settings.options.global_batch_size
        assert self.split is not None
        replicas = self.split.groups.rdp_size
        total = size * replicas
        if wanted and total and (total > wanted or (total < wanted and not self.has_trained)):
            raise OptionError(
                f"global_batch_size is {wanted}",
                f"the batch of this step has {size} samples on each of {replicas} replicas, which"
                f" is {total} in total",
                f"Pass global_batch_size={total}"
                + ("" if wanted % replicas else f", or batches of {wanted // replicas}"),
                about="global_batch_size",
            )
        self.has_trained = True

    def next_repeat(self) -> int:
        """Return the number of the next forward pass since the last training step, from 0.

        Each call counts one pass; passes with and without gradients are counted separately. The
        random numbers of a pass depend on its number.
        """
        kind = self.step_number, torch.is_grad_enabled()
        for old in [each for each in self.forwards if each[0] != self.step_number]:
            del self.forwards[old]
        self.forwards[kind] += 1
        return self.forwards[kind] - 1


def probe(
    state: ModelState,
    step_function: StepFunction,
    piece: Arguments,
    use: Callable[[Arguments], Any],
) -> Any:
    """Run the user's code of one microbatch up to the model's call, to get the model's arguments.

    Args:
        state: State of the parallel model.
        step_function: User's code of the step.
        piece: Arguments of the user's code for this microbatch.
        use: Function that receives the model's arguments.

    Returns:
        Result of `use`.

    Raises:
        OptionError: The user's code ends without calling the model.
    """
    found: list[Any] = []

    def answer(arguments: Arguments) -> Any:
        found.append(use(arguments))
        raise PassedOn

    seed = state.draws(0, 1).seed_of(_SEED_NAME)
    with state.acting(MicrobatchCall(answer=answer)), generators_kept():
        seed_generators(seed)
        try:
            step_function.function(*piece[0], **piece[1])
        except PassedOn:
            return found[0]
    raise not_called(step_function)


def not_called(step_function: StepFunction) -> OptionError:
    """Return the error for a step function that did not call the model."""
    return OptionError(
        f"{step_function.name} returned without calling the model",
        "a step runs each microbatch through the model once",
        "Call the model in the function, or remove @smp.step from it",
        kind="not_called",
    )
