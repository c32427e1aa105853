# SPDX-License-Identifier: Apache-2.0
"""Manifest (list of contents) of a checkpoint, and checks against a model and an optimizer.

The names of parameters are those of the unsplit model. A tied parameter is stored once, under the
first of its names in the model's state dict. A model that has this parameter under another of these
names can load it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from sagemaker_dist.errors import OptionError

_SHOWN = 8  # largest number of names in one error


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """Entry of a manifest: a parameter, a buffer or another state of a module.

    Attributes:
        name: Name of the value in the model. For a value with several names, such as a tied
            parameter, the first one in the order of the model's state dict.
        aliases: All other names of the same value.
        shape: Shape of the whole tensor; None if the value is not a tensor.
        dtype: PyTorch's name of the dtype, without a prefix: "float32"; "" if not a tensor.
    """

    name: str
    aliases: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    dtype: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Parameter group of an optimizer: names of its parameters, and their common options (`lr`).

    A tied parameter is listed once, by the first of its names in the model's state dict.
    """

    names: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """Description of an optimizer's state: its parameter groups, and names of its values.

    Attributes:
        kind: Class of the optimizer.
        options: Names of the options that each parameter group has, such as "lr".
        groups: Parameter groups in the optimizer's order.
        keys: Names of the state values of each parameter, such as "exp_avg", by the parameter's
            name (for a tied parameter, the first of its names in the model's state dict).
            Parameters that the optimizer never updated are absent.
    """

    kind: str
    options: tuple[str, ...]
    groups: tuple[Group, ...]
    keys: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)  # no slots: the class has cached properties
class Manifest:
    """List of a checkpoint's contents.

    Attributes:
        model: Class of the model, shown in reports.
        entries: Entries in the model's order.
        state: State of the optimizer; None if the checkpoint has none.
        layout: Layout of the ranks that wrote the checkpoint: number of ranks, parallel degrees and
            placement strategy, by name.
        run: Random seed and number of training steps, under the keys "seed" and "step". Empty for
            a plain nn.Module.
    """

    model: str
    entries: tuple[ManifestEntry, ...]
    state: OptimizerState | None = None
    layout: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def named(self) -> Mapping[str, ManifestEntry]:
        """Entries by name; an entry with aliases is found under each of its names."""
        return {name: each for each in self.entries for name in (each.name, *each.aliases)}

    def found_for(self, entry: ManifestEntry) -> ManifestEntry | None:
        """Return this manifest's entry for a value of another model, or None if there is none.

        Two entries are for the same value if they share a name or an alias.

        Args:
            entry: Entry of the other model's manifest.
        """
        names = (entry.name, *entry.aliases)
        return next((self.named[name] for name in names if name in self.named), None)

    def document(self) -> dict[str, Any]:
        """Return the manifest as a dict of JSON types; `manifest_of` reads it."""
        return asdict(self)


def model_faults(saved: Manifest, here: Manifest, *, strict: bool) -> Iterator[OptionError]:
    """Yield an error for each reason why a checkpoint cannot be loaded into a model.

    Args:
        saved: Manifest of the checkpoint.
        here: Manifest of the model.
        strict: True if checkpoint and model must have the same parameters and buffers. False to
            ignore those that only the checkpoint or only the model has.
    """
    model = f" and is loaded into {here.model}" if saved.model != here.model else ""
    origin = f"the checkpoint was saved from {saved.model}{model}"
    missing = [each.name for each in here.entries if saved.found_for(each) is None]
    surplus = [each.name for each in saved.entries if here.found_for(each) is None]
    hint = "Load it into the model that was saved, or pass strict=False to load what both have"
    if strict and missing:
        yield OptionError(
            f"the checkpoint lacks {_listed(missing)}", origin, hint, "strict", "missing"
        )
    if strict and surplus:
        yield OptionError(f"the model lacks {_listed(surplus)}", origin, hint, "strict", "surplus")
    pairs = [(each, saved.found_for(each)) for each in here.entries]
    other = [(e, found) for e, found in pairs if found is not None and found.shape != e.shape]
    if other:
        wrong = [
            f"{each.name} has {_shape(each.shape)} in the model, "
            f"and {_shape(found.shape)} in the checkpoint"
            for each, found in other
        ]
        names = tuple(each.name for each, _ in other)
        hint = "Create the model with the shapes of the checkpoint"
        yield OptionError(_listed(wrong), origin, hint, about=names, kind="shape")
    if not strict and len(missing) == len(here.entries):
        yield OptionError(
            "the checkpoint has no value of the model",
            origin,
            "Load it into the model that was saved",
            kind="missing",
        )


def state_faults(saved: Manifest, here: OptimizerState) -> Iterator[OptionError]:
    """Yield an error for each reason why an optimizer cannot load its state from a checkpoint.

    Args:
        saved: Manifest of the checkpoint.
        here: State of the optimizer into which the checkpoint is loaded. Parameters must have the
            names that they have in the checkpoint.
    """
    skip = "pass load_optimizer=False"
    if saved.state is None:
        yield OptionError(
            "the checkpoint has no optimizer state",
            "it was saved without an optimizer",
            "Pass load_optimizer=False",
            about="load_optimizer",
            kind="missing",
        )
        return
    if set(saved.state.options) != set(here.options):
        differing = sorted(set(saved.state.options) ^ set(here.options))
        yield OptionError(
            f"the checkpoint has the state of {saved.state.kind}, and the optimizer is {here.kind}",
            f"only one of them has the options {_listed(differing)}",
            f"Use {saved.state.kind}, or {skip}",
            about="load_optimizer",
            kind="class",
        )
    known = {name for group in saved.state.groups for name in group.names}
    strange = [name for group in here.groups for name in group.names if name not in known]
    if strange:
        yield OptionError(
            f"the optimizer trains {_listed(strange)}",
            f"the {saved.state.kind} of the checkpoint did not train these parameters",
            f"Pass the optimizer the parameters that were trained, or {skip}",
            about="load_optimizer",
            kind="unknown",
        )
    for number, group in enumerate(here.groups):
        if options_for(saved.state, group, number, len(here.groups)) is None and group.names:
            yield OptionError(
                f"parameter group {number} of the optimizer has {_listed(group.names)}",
                "the checkpoint has no common options for all parameters of this group",
                f"Group the parameters as they were when saved, or {skip}",
                about="load_optimizer",
                kind="difference",
            )


def options_for(
    saved: OptimizerState, group: Group, number: int, num_groups: int
) -> Mapping[str, Any] | None:
    """Return the saved options for one parameter group of an optimizer.

    A group gets the options that its parameters had in the checkpoint. A group without parameters
    gets the options of the saved group with the same index. If checkpoint and optimizer have
    different numbers of groups, a group without parameters gets {}.

    Args:
        saved: Optimizer state in the checkpoint.
        group: Parameter group of the optimizer into which the checkpoint is loaded.
        number: Index of this group in the optimizer.
        num_groups: Number of parameter groups of the optimizer.

    Returns:
        Values of the options by name. None if the checkpoint lacks the group's parameters, or if
        in the checkpoint these parameters do not all have the same options.
    """
    sources = [each for each in saved.groups if set(each.names) & set(group.names)]
    if not group.names:
        return saved.groups[number].options if num_groups == len(saved.groups) else {}
    alike = bool(sources) and all(_are_equal(each.options, sources[0].options) for each in sources)
    return sources[0].options if alike else None


def _are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return repr(sorted(one.items())) == repr(sorted(other.items()))


def _shape(shape: tuple[int, ...] | None) -> str:
    return "no tensor" if shape is None else f"shape {tuple(shape)}"


def _listed(names: Iterable[str]) -> str:
    """Return a text with the first 8 names, and the number of names that are left out."""
    names = list(names)
    return ", ".join(names[:_SHOWN]) + f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
