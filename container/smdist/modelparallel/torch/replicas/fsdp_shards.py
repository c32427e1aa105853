# SPDX-License-Identifier: Apache-2.0
"""FSDP2 on a pipeline: a stage's parameters, gradients and optimizer state are sharded.

The option `sharding` selects when whole parameters are gathered from their shards:

    "optimizer"   at their first use in a step; they are kept until the end of the step
    "full"        each time that their module runs; they are freed afterwards

With "full", a rank has only one or two whole modules at a time, but each module is gathered twice
per microbatch. Some schedules split the backward pass into two parts: gradients of inputs, and
later gradients of weights. With such a schedule, "full" keeps whole parameters like "optimizer",
since the second part needs them.

The option `gradient_reduction` selects when gradients are reduced to shards:

    "step"         after the last backward pass of a stage; until then, gradients are whole
    "microbatch"   by FSDP in each backward pass, module by module, so that only the gradients of
                   one or two modules are whole; shards of gradients are added up

With "microbatch" and several copies of the shards, FSDP sums over the copies once per step.

Some parameters are not sharded: parameters that several stages of one rank hold, parameters whose
dtype differs from most parameters of their module, and parameters without dimensions.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.program.program import Ref
from smdist.modelparallel.torch.program.pytree import flatten, unflatten
from smdist.modelparallel.torch.replicas.used_params import UsedParams
from smdist.modelparallel.torch.session.process_groups import Groups
from smdist.modelparallel.torch.tensor_splits import TensorSplit, mark, split_of


class Shards:
    """Stages of one rank that FSDP shards over replicas.

    Args:
        stages: Stages by number; `fully_shard` is applied to them in place.
        groups: Process groups of this rank.
        shard_degree: Number of replicas over which one copy of the parameters is split.
        keeps: True to keep gathered parameters until the end of a step; False to free them after
            each run of their module.
        reduces_often: True to reduce gradients in each backward pass; False to reduce them once
            per step.
        dtype: Dtype of computation, such as torch.bfloat16; None for that of the parameters.
    """

    def __init__(
        self,
        stages: Mapping[int, StageModule],
        groups: Groups,
        *,
        shard_degree: int,
        keeps: bool,
        reduces_often: bool,
        dtype: torch.dtype | None,
    ) -> None:
        self._stages, self._group, self._keeps = stages, groups.of(Axis.RDP), keeps
        self._reduces_often = reduces_often
        self._used = UsedParams()
        self._mesh = _mesh(groups, shard_degree, _device_type(stages.values()))
        # Modules whose result is changed in place are not wrapped, so this warning does not apply.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
        apart = _unshardable(stages, casts=dtype is not None)
        for stage in stages.values():
            splits = _splits(stage)
            _wrap(stage, self._mesh, apart, keeps=keeps, dtype=dtype)
            _mark_again(stage, splits)
            self._pause(stage)
            if reduces_often:
                stage.register_forward_hook(self._watch)

    def before_backward(self, stage: int, is_last: bool) -> None:
        """Prepare FSDP for a backward pass of a stage.

        Args:
            stage: Number of the stage.
            is_last: True if this is the last backward pass of the stage in the step.
        """
        if self._reduces_often and is_last:
            self._root(stage).set_requires_all_reduce(True)

    def end(self, stage: int) -> None:
        """Reduce a stage's gradients after its last backward pass; free its gathered parameters."""
        root = self._root(stage)
        if not _has_run(root):
            return
        root.set_is_last_backward(True)
        root.set_reshard_after_backward(True)
        # Gradients that were reduced in backward passes are not reduced again.
        root.set_requires_gradient_sync(not self._reduces_often)
        with torch.no_grad():
            if self._reduces_often:
                self._used.drop_unused(_parts(root), self._group)
            else:
                self._fill_gradients(root)
        # Called directly, as torch's pipelines do: split backward passes do not reach FSDP's hook.
        root._get_fsdp_state()._root_post_backward_final_callback()
        self._pause(self._stages[stage])

    def rest(self) -> None:
        """Free gathered parameters and reset FSDP, after forward passes without backward passes."""
        for stage in self._stages:
            root = self._root(stage)
            if _has_run(root):
                root.reset_iter_state()

    def retrain(self) -> None:
        """Update FSDP's reduction dtypes after parameters were frozen or unfrozen."""
        for stage in self._stages:
            root = self._root(stage)
            for group in _groups(root) if _has_run(root) else ():
                group._init_mp_dtypes()

    def _root(self, stage: int) -> FSDPModule:
        """Return the stage with this number, as an FSDP module for type checkers."""
        root = self._stages[stage]
        assert isinstance(root, FSDPModule)
        return root

    def _pause(self, stage: nn.Module) -> None:
        """Set a stage so that more backward passes of the same step may follow."""
        assert isinstance(stage, FSDPModule)
        stage.set_is_last_backward(False)
        stage.set_reshard_after_backward(not self._keeps)
        if self._reduces_often:
            stage.set_requires_gradient_sync(True)
            stage.set_requires_all_reduce(False)
        else:
            stage.set_requires_gradient_sync(False)

    def _watch(self, stage: nn.Module, *_: object) -> None:
        """Forward hook of a stage: let FSDP reduce all its parameters, and note which are used.

        FSDP leaves out parameters without a gradient by default. Replicas may use different
        parameters, and each has to reduce the same ones.
        """
        assert isinstance(stage, FSDPModule)
        for group in _groups(stage):
            group.reduce_scatter_unused_params = True
        self._used.watch(_parts(stage))

    def _fill_gradients(self, root: FSDPModule) -> None:
        """Give a parameter a zero gradient if only other replicas have a gradient of it.

        FSDP reduces the gradient of a parameter only if every replica has one. All replicas must
        call this.

        Args:
            root: Stage whose last backward pass has ended.
        """
        parts = [part for part in _parts(root) if part.sharded_param.requires_grad]
        if not parts:
            return
        for part in parts:
            _complete(part)
        device = parts[0].sharded_param.device
        has = torch.tensor([float(_has_gradient(part)) for part in parts], device=device)
        dist.all_reduce(has, group=self._group)
        for part, count in zip(parts, has.tolist(), strict=True):
            if count and not _has_gradient(part):
                whole = part._unsharded_param
                whole.grad = torch.zeros(whole.shape, dtype=whole.dtype, device=device)
                _complete(part)


def _splits(stage: nn.Module) -> dict[str, TensorSplit]:
    """Return the splits of a stage's parameters that are parts of split tensors, by name."""
    named = stage.named_parameters(remove_duplicate=False)
    found = ((name, split_of(parameter)) for name, parameter in named)
    return {name: split for name, split in found if split is not None}


def _mark_again(stage: nn.Module, splits: Mapping[str, TensorSplit]) -> None:
    """Record the splits at a stage's parameters, some of which FSDP has replaced by shards."""
    for name, parameter in stage.named_parameters(remove_duplicate=False):
        if name in splits:
            mark(parameter, splits[name])


def _has_run(root: FSDPModule) -> bool:
    """Return True if a stage has run forward at least once."""
    return bool(root._get_fsdp_state()._is_root)


def keeps_gathered(sharding: str, *, splits_backward: bool) -> bool:
    """Return True if gathered parameters are kept until the end of a step.

    Args:
        sharding: "optimizer" or "full".
        splits_backward: True if the schedule computes gradients of inputs and of weights
            separately.
    """
    return sharding == "optimizer" or splits_backward


def _mesh(groups: Groups, shard_degree: int, device_type: str) -> DeviceMesh:
    """Make FSDP's device mesh over the replicas of this rank's stages; all ranks must call this.

    The mesh has one dimension, over which parameters are sharded. If there are more replicas than
    `shard_degree`, it has two dimensions: "shards", and "copies" of the shards.

    Args:
        groups: Process groups of this rank.
        shard_degree: Number of replicas over which one copy of the parameters is split.
        device_type: "cuda" or "cpu".
    """
    if shard_degree == groups.rdp_size:
        return DeviceMesh.from_group(groups.of(Axis.RDP), device_type)
    own: dict[str, dist.ProcessGroup] = {}
    for members in groups.layout.all_members(Axis.RDP):
        grid = torch.tensor(members).view(-1, shard_degree)
        for name, rows in (("copies", grid.t().tolist()), ("shards", grid.tolist())):
            for row in rows:
                group = dist.new_group(row)
                if groups.rank in row:
                    own[name] = group
    grid = torch.tensor(groups.members(Axis.RDP)).view(-1, shard_degree)
    names = ("copies", "shards")
    made: DeviceMesh = DeviceMesh.from_group(
        [own[name] for name in names], device_type, mesh=grid, mesh_dim_names=names
    )
    return made


def _device_type(stages: Iterable[nn.Module]) -> str:
    """Return the device type of the stages' parameters; "cpu" if there are none."""
    tensors = (tensor for stage in stages for tensor in stage.parameters())
    return next((tensor.device.type for tensor in tensors), "cpu")


def _unshardable(stages: Mapping[int, StageModule], *, casts: bool) -> set[nn.Parameter]:
    """Return the parameters that FSDP cannot shard.

    These are scalars, and parameters that several stages of this rank share. If FSDP `casts`
    gathered parameters, the other parameters of the same module are added, since a module computes
    in one dtype.
    """
    count = Counter(parameter for stage in stages.values() for parameter in stage.parameters())
    shared = {parameter for parameter, number in count.items() if number > 1}
    units = [stage.get_submodule(n) for stage in stages.values() for n in stage.route.units]
    around = [set(unit.parameters()) for unit in units if casts]
    whole = shared.union(*(own for own in around if own & shared))
    return whole | {parameter for parameter in count if not parameter.dim()}


def _wrap(
    stage: StageModule,
    mesh: DeviceMesh,
    apart: set[nn.Parameter],
    *,
    keeps: bool,
    dtype: torch.dtype | None,
) -> None:
    """Apply FSDP to each module of a stage, then to the stage for its other parameters.

    Args:
        stage: Stage to shard in place.
        mesh: FSDP's device mesh.
        apart: Parameters that are not sharded.
        keeps: True to keep gathered parameters until the end of a step.
        dtype: Dtype of computation; None for that of the parameters.
    """
    wide = torch.float32 if dtype is not None else None  # for sums, and for other stages
    units = _separate(stage, apart)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=wide)
    for unit in units:
        ignored = apart | _odd(unit.parameters(), apart)
        _shard(unit, mesh, ignored, keeps=keeps, policy=policy)
    if dtype is not None:
        _cast_others(stage, units, apart, dtype)
    left = [p for p in stage.parameters() if not isinstance(p, DTensor)]
    policy = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=wide, cast_forward_inputs=False, output_dtype=wide
    )  # fmt: skip
    _shard(stage, mesh, apart | _odd(left, apart), keeps=keeps, policy=policy)


def _cast_others(
    stage: StageModule, units: list[nn.Module], apart: set[nn.Parameter], dtype: torch.dtype
) -> None:
    """Convert the inputs of a stage, and of its modules to which FSDP is not applied one by one.

    Args:
        stage: Stage whose hooks are registered.
        units: Modules to which FSDP is applied one by one, so that it converts their inputs.
        apart: Parameters that are not sharded; a module with one of them computes in its dtype.
        dtype: Dtype of computation.
    """
    for name in stage.route.units:
        unit = stage.get_submodule(name)
        first = next(unit.parameters(), None)
        if first is not None and unit not in units:
            kind = first.dtype if first in apart else dtype
            unit.register_forward_pre_hook(partial(_cast_all, kind), with_kwargs=True)
    stage.register_forward_pre_hook(partial(_cast_received, dtype))


def _shard(
    module: nn.Module,
    mesh: DeviceMesh,
    ignored: set[nn.Parameter],
    *,
    keeps: bool,
    policy: MixedPrecisionPolicy,
) -> None:
    """Apply FSDP to one module.

    Args:
        module: Module to shard in place.
        mesh: FSDP's device mesh.
        ignored: Parameters that are not sharded.
        keeps: True to keep gathered parameters until the end of a step.
        policy: Dtypes in which FSDP computes and reduces gradients.
    """
    fully_shard(
        module,
        mesh=mesh,
        reshard_after_forward=not keeps,
        mp_policy=policy,
        ignored_params=ignored,
    )


def _separate(stage: StageModule, apart: set[nn.Parameter]) -> list[nn.Module]:
    """Return the modules of a stage to which FSDP is applied one by one.

    Such a module has a parameter to shard, and shares no parameter with another module of the
    stage. A module whose result a later call changes in place is left out, since FSDP would lose
    its hook on that result.

    Args:
        stage: Stage to shard.
        apart: Parameters that are not sharded.
    """
    changed = _changed_in_place(stage)
    units = [stage.get_submodule(name) for name in stage.route.units if name not in changed]
    count = Counter(parameter for unit in units for parameter in unit.parameters())
    return [
        unit
        for unit in units
        if any(p not in apart for p in unit.parameters())
        and all(count[p] == 1 for p in unit.parameters())
    ]


def _changed_in_place(stage: StageModule) -> set[str]:
    """Return the names of a stage's modules whose results a later call changes in place."""
    places = stage.program.aliases
    written = {
        places[call.arguments[at].value]  # type: ignore[union-attr]
        for call in stage.route.calls
        for at, _ in call.changed
        if isinstance(call.arguments[at], Ref)
    }
    return {
        call.module
        for call in stage.route.calls
        if call.is_unit and written.intersection(places[name] for name in call.writes)
    }


def _odd(parameters: Iterable[nn.Parameter], apart: set[nn.Parameter]) -> set[nn.Parameter]:
    """Return the parameters whose dtype is not the most common one, since FSDP needs one dtype.

    Args:
        parameters: Parameters of a module. Parameters that are sharded already are skipped.
        apart: Parameters that are not sharded at all; these are skipped, too.
    """
    own = [p for p in parameters if p not in apart and not isinstance(p, DTensor)]
    sizes: Counter[torch.dtype] = Counter()
    for parameter in own:
        sizes[parameter.dtype] += parameter.numel()
    most = max(sizes, key=sizes.__getitem__, default=None)
    return {parameter for parameter in own if parameter.dtype is not most}


def _parts(root: FSDPModule) -> list[Any]:
    """Return the `FSDPParam` objects of a stage's parameters that have been gathered at least once.

    The order is the same on all replicas.
    """
    parts = (part for group in _groups(root) for part in group.fsdp_params)
    return [part for part in parts if hasattr(part, "_unsharded_param")]


def _groups(root: FSDPModule) -> list[Any]:
    """Return the `FSDPParamGroup` objects of a stage and of its modules."""
    states = root._get_fsdp_state()._state_ctx.all_states
    return [group for state in states for group in state._fsdp_param_groups]


def _complete(part: Any) -> None:
    """Move a parameter's gradient to the attribute that FSDP reduces.

    A backward pass for the gradients of weights alone stores the gradient in another attribute.

    Args:
        part: `FSDPParam` of the parameter.
    """
    part.accumulate_unsharded_grad_if_needed()
    part.to_accumulated_grad_if_needed()


def _has_gradient(part: Any) -> bool:
    """Return True if the `FSDPParam` of a parameter has a gradient that is not reduced yet."""
    return part.unsharded_accumulated_grad is not None or part._unsharded_param.grad is not None


def _cast_all(dtype: torch.dtype, _: nn.Module, args: Any, kwargs: Any) -> Any:
    """Forward pre-hook: return a module's arguments with floating-point tensors in `dtype`."""
    leaves, form = flatten((args, kwargs))
    return unflatten(form, [_cast(leaf, dtype) for leaf in leaves])


def _cast_received(dtype: torch.dtype, _: nn.Module, args: Any) -> Any:
    """Forward pre-hook: return a stage's arguments with received float tensors in `dtype`."""
    received, *others = args
    return ({name: _cast(value, dtype) for name, value in received.items()}, *others)


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    """Convert `leaf` to `dtype` if it is a floating-point tensor; return anything else as it is."""
    is_float = isinstance(leaf, Tensor) and leaf.is_floating_point()
    return leaf.to(dtype) if is_float else leaf
