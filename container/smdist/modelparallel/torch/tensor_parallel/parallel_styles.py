# SPDX-License-Identifier: Apache-2.0
"""Plan of torch's tensor parallelism as a choice of the modules that are split, and how.

A user's plan names modules and styles, as for `torch.distributed.tensor.parallel` (torch 2.13). The
search finds and proves splits as it does without a plan; it may split these modules only, and each
one has to come out with the style that the plan gives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.torch.program.module_marks import ModuleMark
from smdist.modelparallel.torch.tensor_parallel import refusal_kinds
from smdist.modelparallel.torch.tensor_parallel.marks import set_tensor_parallelism
from smdist.modelparallel.torch.tensor_parallel.tensor_plan import TensorPlan
from smdist.modelparallel.torch.tensor_splits import Role
from smdist.modelparallel.torch.tensor_splits.split_modules import is_product, is_table

_style: ModuleMark[str] = ModuleMark("_smp_parallel_style")
_STYLES: Final = {ColwiseParallel: "ColwiseParallel", RowwiseParallel: "RowwiseParallel"}
_ROLES: Final = {
    "ColwiseParallel": (Role.COLUMN, Role.JOINED),
    "RowwiseParallel": (Role.ROW, Role.VOCABULARY),
}


def parallelize_module(
    module: nn.Module, parallelize_plan: ParallelStyle | Mapping[str, ParallelStyle]
) -> None:
    """Choose the modules of a model that are split over ranks, by a plan as torch's function has.

    The model is split before its first step, over `tensor_parallel_degree` ranks; there is no
    device mesh. Each split is proved first. No module outside of the plan is split, except those of
    other calls and those that `set_tensor_parallelism` names.

    Args:
        module: Module of the model, mostly the model itself.
        parallelize_plan: Style for `module` itself, or styles by the names of modules inside it.
            A name may have the wildcards of `fnmatch` between two dots, as in
            "layers.*.mlp.up_proj". Styles are `ColwiseParallel` and `RowwiseParallel` of
            `torch.distributed.tensor.parallel`, for linear layers; `RowwiseParallel`
            splits embeddings by rows. The layouts of values between layers follow from the model:
            those of a style that shard sequences or samples are refused.

    Raises:
        OptionError: A name has no module, a module or a style is of another class, or a layout is
            refused. All faults are reported together. A module that cannot be split as the plan
            says is an error at the first step.
    """
    plan = {"": parallelize_plan} if isinstance(parallelize_plan, ParallelStyle) else {}
    if isinstance(parallelize_plan, Mapping):
        plan = {**parallelize_plan}
    chosen: dict[str, str] = {}
    faults = [] if plan else [_no_plan(parallelize_plan)]
    for pattern, style in plan.items():
        names = [name for name, _ in module.named_modules() if _matches(name, pattern)]
        found = [*_faults(module, pattern, names, style)]
        if not found:
            chosen.update(dict.fromkeys(names, _STYLES[type(style)]))
        faults += found
    raise_all(faults)
    for name, style_name in chosen.items():
        inner = module.get_submodule(name)
        set_tensor_parallelism(inner)
        _style.set(inner, style_name)


def check_styles(model: nn.Module, plan: TensorPlan) -> None:
    """Check that each module with a style is split in this way.

    Raises:
        OptionError: A module stays whole, or is split in another way; all are reported together.
    """
    roles = {each.name: each.role for each in plan.modules if each.dims}
    reasons = {each.module: each for each in plan.whole}
    faults = []
    for name, module in model.named_modules():
        style = _style.get(module)
        if style is None or roles.get(name) in _ROLES[style]:
            continue
        why = reasons[name].text if name in reasons else "no split of it was found"
        if name in roles:
            why = f"its proved split has the role {roles[name].value!r}"
        elif name in reasons and reasons[name].kind == refusal_kinds.BY_HAND:
            why = "other layers of its split are not in the plan"
        faults.append(
            OptionError(
                f"{name!r} cannot be split as {style}",
                why,
                "Name its partners in the plan too, or leave it out; model.tensor_plan of a run "
                "without a plan has the splits that are proved",
                about=name,
                kind="not_split",
            )
        )
    raise_all(faults)


def _matches(name: str, pattern: str) -> bool:
    """Return True if each part of a name matches the same part of a pattern."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _no_plan(plan: object) -> OptionError:
    what = "is empty" if isinstance(plan, Mapping) else f"is of class {type(plan).__name__}"
    return OptionError(
        f"parallelize_plan {what}",
        "it names the modules to split, and a style for each of them",
        'Pass a dict such as {"up": ColwiseParallel(), "down": RowwiseParallel()}',
        about="parallelize_plan",
        kind="invalid",
    )


def _faults(
    module: nn.Module, pattern: str, names: list[str], style: object
) -> Iterator[OptionError]:
    """Yield the faults of one entry of a plan.

    Args:
        module: Module that the plan is for.
        pattern: Name in the plan.
        names: Names of the modules that match it.
        style: Style in the plan.
    """
    if not names:
        yield OptionError(
            f"parallelize_plan has {pattern!r}, which matches no module",
            f"{type(module).__name__} has no module of this name",
            "Correct the name; model.named_modules() lists all of them",
            about=pattern,
            kind="unknown",
        )
    if type(style) not in _STYLES:
        yield OptionError(
            f"the style of {pattern!r} is {style if isinstance(style, str) else _class(style)}",
            "linear layers and embeddings are split by columns or by rows, and the layouts of "
            "values between them follow from the model",
            "Pass ColwiseParallel() or RowwiseParallel(), and leave norms and prepared inputs out",
            about=pattern,
            kind="unsupported",
        )
        return
    for name in names:
        inner = module.get_submodule(name)
        if not is_product(inner) and not (is_table(inner) and isinstance(style, RowwiseParallel)):
            yield OptionError(
                f"{name!r}, of class {_class(inner)}, has the style {_class(style)}",
                "linear layers have columns; linear layers and embeddings have rows",
                "Name the linear layers inside of it, or leave it out",
                about=name,
                kind="unsupported",
            )
    assert isinstance(style, (ColwiseParallel, RowwiseParallel))
    yield from _layout_faults(pattern, style)


def _layout_faults(pattern: str, style: ColwiseParallel | RowwiseParallel) -> Iterator[OptionError]:
    """Yield the layouts of a style that no split has."""
    for key in ("input_layouts", "output_layouts"):
        (layout,) = getattr(style, key)
        if layout != Replicate() and layout not in (Shard(-1), Shard(2)):
            yield OptionError(
                f"the style of {pattern!r} has {key}={layout}",
                "values between layers are whole or split by columns; sequences and samples are "
                "not sharded",
                f"Leave {key} out",
                about=pattern,
                kind="unsupported",
            )


def _class(value: object) -> str:
    return type(value).__name__
