# SPDX-License-Identifier: Apache-2.0
"""Report of a search of layouts: the choice, the rule that makes it win, and the families."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from textwrap import fill

from smdist.modelparallel.core.layout.degrees import CHECKPOINTED, REPLICAS, Layout
from smdist.modelparallel.core.layout.find_layout import LayoutSearch
from smdist.modelparallel.core.layout.float32_speed import float32_assumption
from smdist.modelparallel.core.layout.machine_speed import Machine
from smdist.modelparallel.core.layout.prediction import Prediction
from smdist.modelparallel.core.plan.forecast import Forecast
from smdist.modelparallel.core.plan.number_format import (
    digits,
    number,
    seconds,
    share,
    size,
    slower,
)


class Rule(Enum):
    """Rule that makes a layout win, named by what it avoids or makes room for."""

    ALL_FITS = "all_fits"
    SHARDS_IN_HOST = "shards_in_host"
    SHARDS_FOR_ROOM = "shards_for_room"
    OPTIMIZER_FOR_ROOM = "optimizer_for_room"
    STAGES_FOR_ROOM = "stages_for_room"
    LAYERS_FOR_ROOM = "layers_for_room"
    FEWER_MESSAGES = "fewer_messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Reason why a family is not the best.

    Attributes:
        family: Name of the family.
        kind: "memory" if nothing of the family fits; otherwise the part of a step that is the
            largest addition, by its name in `TimeParts`.
        factor: Seconds per sample, relative to the best layout; None if nothing fits.
        text: The reason as one line.
    """

    family: str
    kind: str
    factor: float | None
    text: str


_PARTS = {
    "compute": "its layers run slower",
    "recompute": "it computes activations again",
    "bubble": "ranks of its pipelines wait",
    "tensor": "nothing hides the sums of split layers",
    "shards": "gathers of shards take longer than the computation that hides them",
    "gradients": "sums of gradients take longer at the end of a step",
    "offload": "copies to the host take longer than the computation that hides them",
    "optimizer": "each rank updates more weights",
}


def rule_of(search: LayoutSearch) -> Rule:
    """Return the rule that makes the best layout win."""
    best = search.best.layout
    if search.families[1:] and _simpler_fits(search):
        return Rule.FEWER_MESSAGES
    if best.is_hybrid:
        return Rule.SHARDS_IN_HOST
    if best.sharding == "full":
        return Rule.SHARDS_FOR_ROOM
    if best.sharding == "optimizer":
        return Rule.OPTIMIZER_FOR_ROOM
    if best.tensor > 1:
        return Rule.LAYERS_FOR_ROOM
    return Rule.STAGES_FOR_ROOM if best.pipeline > 1 else Rule.ALL_FITS


def _simpler_fits(search: LayoutSearch) -> bool:
    """Return True if plain replicas fit as well, and are slower than a layout that is none."""
    families = {each.layout.family for each in search.families}
    return REPLICAS in families and search.best.layout.family != REPLICAS


def explain(search: LayoutSearch, machine: Machine, unsplit: str = "") -> str:
    """Return the report of a search, several lines of text that end with a newline.

    Args:
        search: Result of the search.
        machine: Machine of the search.
        unsplit: Reason why no layer was split over ranks; "" for no remark.
    """
    best = search.best
    others = [f"    * {reason.family}: {reason.text}." for reason in reasons(search)]
    assumed = [*assumptions_of(search, machine), *map(unsplit_assumption, filter(None, [unsplit]))]
    lines = [
        f"Layout: {best.layout.family} ({best.layout})",
        f"  {size(best.memory.total)} on the fullest rank, of which {size(best.memory.state)} is"
        " state.",
        "  The plan's stages are those of this layout.",
        f"  Why it wins: {_rule_text(rule_of(search), best)}",
        f"  Options: ModelParallel({_options(best.layout)})",
        *_script(best.layout),
        *(["  Other families", *others] if others else []),
        *(["  Assumed", *(f"    * {line}" for line in assumed)] if assumed else []),
    ]
    return "\n".join(map(_wrapped, lines)) + "\n"


def assumptions_of(search: LayoutSearch, machine: Machine) -> Iterator[str]:
    """Yield a sentence for each figure of a search that was not measured on the machine itself.

    Args:
        search: Result of the search.
        machine: Machine of the search.
    """
    if search.best.slowdown > 1:
        yield float32_assumption(machine.cluster.device)
    yield from machine.assumptions()


def unsplit_assumption(why: str) -> str:
    """Return the sentence that no layer was split over ranks, with the reason."""
    return f"Layers stay whole: {why}."


def prediction_text(search: LayoutSearch, forecast: Forecast) -> str:
    """Return sentences with the time of a step, and why the simulated one of its stages differs.

    Args:
        search: Result of the search.
        forecast: Simulation of the plan's stages.
    """
    best = search.best
    rate = digits(best.layout.samples / best.step_seconds)
    is_measured = forecast.source == "measured"
    source = "with times measured" if is_measured else "at the peak speed estimated"
    ends = f"{seconds(best.low_seconds)} to {seconds(best.high_seconds)}"
    return (
        f"A step is predicted to take {seconds(best.step_seconds)} (from {ends}), which is {rate}"
        f" samples per second. The stages below are simulated: {source} for {forecast.device},"
        " without gathers of shards and without the update of weights. Such a step takes"
        f" {seconds(forecast.step_seconds)}, which serves to compare stages and schedules with each"
        " other."
    )


def _wrapped(line: str) -> str:
    """Return a line in several lines of at most 100 characters, indented like the first one."""
    indent = " " * (len(line) - len(line.lstrip(" *")))
    return fill(line, 100, subsequent_indent=indent or "  ", break_long_words=False)


def reasons(search: LayoutSearch) -> Iterator[Reason]:
    """Yield one reason for each family that is not the best: slower ones, then those that are full.

    The reason of a slower family is the part of its step that is longest beyond the best layout's.
    """
    best = search.best
    for each in search.families[1:]:
        factor = each.seconds_per_sample / best.seconds_per_sample
        kind = _largest_addition(each, best)
        text = f"{slower(factor)}, because {_PARTS[kind]} ({each.layout})"
        if factor < 1.0005:
            text = f"it is as fast, and more of its messages have to be hidden ({each.layout})"
        yield Reason(family=each.layout.family, kind=kind, factor=factor, text=text)
    for full in search.misfits:
        text = (
            f"it does not fit: {size(full.memory.total)} of {size(full.limit_bytes)} at least,"
            f" of which {size(full.memory.state)} is state ({full.layout})"
        )
        yield Reason(family=full.layout.family, kind="memory", factor=None, text=text)


def _largest_addition(each: Prediction, best: Prediction) -> str:
    def more(name: str) -> float:
        mine = float(getattr(each.time, name)) / each.layout.samples
        return mine - float(getattr(best.time, name)) / best.layout.samples

    return max(_PARTS, key=more)


def _rule_text(rule: Rule, best: Prediction) -> str:
    layout, state = best.layout, size(best.memory.state)
    texts = {
        Rule.ALL_FITS: f"all state fits on each rank ({state}), so that ranks only sum gradients",
        Rule.SHARDS_IN_HOST: f"{number(layout.shard_degree, 'rank')} share one copy of the state"
        f" ({state} each), and their gathers do not leave this group",
        Rule.SHARDS_FOR_ROOM: f"shards of all state take {state} a rank, and computation hides"
        " their gathers",
        Rule.OPTIMIZER_FOR_ROOM: f"shards of the optimizer's state make room ({state} a rank),"
        " and weights are gathered only once a step",
        Rule.STAGES_FOR_ROOM: f"stages divide the state ({state} a rank) with the fewest messages",
        Rule.LAYERS_FOR_ROOM: f"split layers divide state ({state} a rank) and activations",
        Rule.FEWER_MESSAGES: "plain replicas fit, and sum all gradients at the end of a step,"
        " which takes longer",
    }
    text = texts[rule]
    if layout.num_microbatches > 1 and layout.pipeline == 1:
        text += f"; {layout.num_microbatches} microbatches accumulate gradients before each sum"
    if best.time.bubble > 0:
        text += f"; ranks wait {share(best.time.bubble / best.time.step)} of a step"
    return text + "."


def _options(layout: Layout) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in layout.options().items())


def _script(layout: Layout) -> list[str]:
    """Return the line that says what the script has to call, if checkpointing is part of it."""
    if layout.checkpointing == "none":
        return []
    which = CHECKPOINTED[layout.checkpointing]
    return [f"  In the script: smp.set_activation_checkpointing(module) for {which}"]
