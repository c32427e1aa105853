# SPDX-License-Identifier: Apache-2.0
"""The command `sagemaker-dist advise`, which compares instance types for a training."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table

from sagemaker_dist.catalog import check_region, prices_for
from sagemaker_dist.cli import screen
from sagemaker_dist.cli.advice import (
    Advice,
    Offer,
    TrainingWork,
    advice_of,
    candidates_of,
    draw_front,
    forecasts_of,
    offers_of,
)
from sagemaker_dist.cli.advice.calibrated_type import MeasuredType, calibration_of
from sagemaker_dist.cli.advice.candidates import types_without_price
from sagemaker_dist.cli.advice.verdicts import span, verdict_of
from sagemaker_dist.cli.hosts import counted
from sagemaker_dist.cli.shared_options import FILE, complete_type, json_option
from sagemaker_dist.errors import OptionError, SetupError, raise_all

_GIB: Final = 2**30
_WIDTH: Final = 150
_DURATION: Final = re.compile(r"(?P<number>\d+(\.\d*)?)(?P<unit>[mhd])")
_HOURS: Final = {"m": 1 / 60, "h": 1.0, "d": 24.0}
_MOST: Final = 10**15
_MOST_HOSTS: Final = 1024
_LEARNING: Final = (
    "A global batch k times as large takes k times the learning rate, warmed up over the first"
    " epochs (Goyal et al. 2017, for SGD; with Adam the square root of k is common, Malladi et al."
    " 2022). Beyond some batch more samples are needed for the same loss: that is not in the hours."
)


@click.command()
@click.argument("file", type=FILE)
@click.option("--samples", metavar="N", help="Samples of an epoch, such as 1e9. Required.")
@click.option("--epochs", metavar="N", default="1", help="Default: 1.")
@click.option("--deadline", metavar="TIME", help="Longest time, such as 90m, 24h or 3d.")
@click.option("--budget", metavar="DOLLARS", help="Most US dollars, on demand.")
@click.option(
    "--global-batch",
    metavar="N",
    help="Samples of a step. Default: example()'s batch on each replica.",
)
@click.option(
    "--base-batch", metavar="N", help="Batch of your learning rate. Default: example()'s batch."
)
@click.option(
    "--instance-type",
    "types",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_type,
    help="Type to compare; may be repeated. Default: the largest type of each GPU with a price.",
)
@click.option("--counts", default="1,2,4,8", metavar="N,N", help="Hosts. Default: 1,2,4,8.")
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    help="Type of weights, for memory of the state with Adam. Default: float32.",
)
@click.option(
    "--region", metavar="NAME", help="Region of the prices. Default: the lowest known price."
)
@click.option(
    "--calibration",
    type=FILE,
    metavar="FILE",
    help="Speeds that sagemaker-dist calibrate measured on one of the types.",
)
@click.option(
    "--calibrated-type",
    metavar="NAME",
    shell_complete=complete_type,
    help="Type that the file was measured on. Default: the only type compared that has its GPU.",
)
@click.option("--prices", type=FILE, metavar="FILE", help="Prices that override all others.")
@click.option("--plot", type=FILE, metavar="FILE", help="Draw hours and dollars: .svg.")
@click.option("--python", metavar="FILE", help="Interpreter with torch and the runtime.")
@json_option
def advise(file: Path, plot: Path | None, as_json: bool, **values: Any) -> int:
    """Compare instance types for training the model of FILE: time, price, and how to lay it out.

    FILE is a model as for sagemaker-dist plan: it has the functions model() and example(). Nothing
    starts, and AWS is not called. The exit status is 1 if no cluster meets the limits.
    """
    read = _read(values, plot)
    prices = read["prices"]
    candidates = candidates_of(values["types"], read["counts"], prices)
    calibration = calibration_of(values["calibration"], values["calibrated_type"], candidates)
    answer = forecasts_of(
        file,
        candidates,
        global_batch=read["global_batch"],
        precision=values["precision"],
        python=values["python"],
        calibration=calibration,
    )
    training = TrainingWork(
        samples=read["samples"],
        epochs=read["epochs"],
        base_batch=read["base_batch"] or answer["batch_per_replica"],
        deadline_hours=read["deadline"],
        budget_dollars=read["budget"],
    )
    advice = advice_of(offers_of(candidates, answer["results"], training), training)
    if plot is not None:
        _write(plot, draw_front(advice, f"{file.name}: {training.samples:,} samples an epoch"))
    omitted = [] if values["types"] else types_without_price(prices)
    if as_json:
        screen.print_json(_document(advice, training, answer, omitted, calibration))
    else:
        _show(advice, training, answer, omitted, calibration)
    return 0 if advice.choice is not None else 1


def _read(values: dict[str, Any], plot: Path | None) -> dict[str, Any]:
    """Return the numbers and the prices of the options; all faults are reported at once."""
    faults: list[OptionError] = []
    read: dict[str, Any] = {}

    def keep(name: str, value: Any, expected: str) -> None:
        given = values[name]
        read[name] = value
        if given is not None and value is None:
            flag = f"--{name.replace('_', '-')}"
            why, hint = f"it must be {expected}", f"Pass {expected}"
            faults.append(OptionError(f"{flag} is {given!r}", why, hint, about=name))

    if values["samples"] is None:
        hint = "Pass --samples with the samples of an epoch, such as --samples 1e6"
        what, why = "--samples is missing", "time and price follow from the number of samples"
        faults.append(OptionError(what, why, hint, about="samples", kind="missing"))
    for name in ("samples", "epochs", "global_batch", "base_batch"):
        keep(name, _count(values[name]), f"a whole number from 1 to {_MOST:.0e}")
    keep("budget", _positive(values["budget"]), f"a number of dollars above 0, up to {_MOST:.0e}")
    keep("deadline", _hours(values["deadline"]), "a time such as 90m, 24h or 3d")
    keep("counts", _counts(values["counts"]), f"numbers of hosts up to {_MOST_HOSTS}, such as 1,2")
    faults.extend(_plot_faults(plot))
    try:
        check_region(values["region"])
        read["prices"] = prices_for(values["region"], values["prices"])
    except OptionError as error:
        faults.append(error)
    raise_all(faults)
    return read


def _plot_faults(plot: Path | None) -> Iterator[OptionError]:
    """Yield an error if the picture cannot be written, before the comparison, which takes long."""
    if plot is None:
        return
    what = f"--plot is {str(plot)!r}"
    if plot.suffix != ".svg":
        why = "the picture is an SVG file"
        yield OptionError(what, why, "Pass a name that ends with .svg", about="plot")
    elif plot.is_dir() or not plot.parent.is_dir():
        why = "it is a folder" if plot.is_dir() else f"the folder {plot.parent} does not exist"
        hint = "Pass the path of a file in a folder that exists"
        yield OptionError(what, why, hint, about="plot")


def _positive(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 < number <= _MOST else None


def _count(text: str | None) -> int | None:
    number = _positive(text)
    return int(number) if number is not None and number == math.floor(number) else None


def _hours(text: str | None) -> float | None:
    found = _DURATION.fullmatch(text or "")
    if found is None:
        return None
    return _positive(str(float(found["number"]) * _HOURS[found["unit"]]))


def _counts(text: str) -> list[int] | None:
    counts = [_count(part) for part in text.split(",")]
    if any(each is None or each > _MOST_HOSTS for each in counts):
        return None
    return [each for each in counts if each is not None]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        hint = "Pass --plot with a file that you may write"
        raise SetupError("the picture cannot be written", str(error), hint) from error


def _document(
    advice: Advice, training: TrainingWork, answer: dict[str, Any], omitted: list[str],
    calibration: MeasuredType | None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "training": asdict(training),
        "parameters": answer["parameters"],
        "choice": None if advice.choice is None else advice.choice.name,
        "front": [each.name for each in advice.front],
        "dominated": [each.name for each in advice.dominated],
        "calibrated_type": None if calibration is None else calibration.instance_type,
        "offers": [
            {"name": each.name, "verdict": verdict_of(each, training).value, **asdict(each)}
            for each in advice.offers
        ],
        "reasons": [
            {"name": each.offer.name, "verdict": each.verdict.value, "text": each.text}
            for each in advice.reasons
        ],
        "types_without_price": omitted,
        "assumptions": answer["assumptions"],
    }


def _show(
    advice: Advice, training: TrainingWork, answer: dict[str, Any], omitted: list[str],
    calibration: MeasuredType | None,
) -> None:  # fmt: skip
    choice = advice.choice
    screen.heading(f"Choice: {'none meets the limits' if choice is None else choice.name}")
    if choice is not None:
        screen.facts(_choice_rows(choice), indent=2)
    screen.line()
    screen.heading("Pareto front: no other is both faster and cheaper")
    screen.show(_table(advice, training), width=_WIDTH)
    if advice.dominated:
        count = counted(len(advice.dominated), "cluster")
        verb = "is" if len(advice.dominated) == 1 else "are"
        screen.paragraph(
            f"{count} {verb} not shown: one of the above is faster and cheaper. --json has all."
        )
    if advice.reasons:
        screen.line()
        screen.heading("Why not")
        screen.facts([(each.offer.name, each.text) for each in advice.reasons], indent=2)
    screen.line()
    screen.heading("Batch and learning rate")
    screen.paragraph(_LEARNING, indent=2)
    screen.line()
    screen.heading("Assumed")
    for text in [*_speeds(advice, calibration), *_assumptions(advice, answer, omitted)]:
        screen.paragraph(text, indent=2)


def _speeds(advice: Advice, calibration: MeasuredType | None) -> Iterator[str]:
    """Yield a sentence that says which types have measured speeds, and which published ones."""
    if calibration is None:
        return
    names = dict.fromkeys(each.candidate.instance_type for each in advice.offers)
    others = [name for name in names if name != calibration.instance_type]
    rest = f"; published or assumed: {', '.join(others)}" if others else ""
    yield (
        f"Speeds measured, by {calibration.file.name}: {calibration.instance_type}{rest}. Links"
        " between hosts and between GPUs are not measured."
    )


def _choice_rows(offer: Offer) -> Iterator[tuple[str, str]]:
    layout = offer.layout
    assert layout is not None
    assert offer.epoch_hours is not None
    assert offer.epoch_dollars is not None
    assert offer.hours is not None
    assert offer.dollars is not None
    device = offer.candidate.cluster.device
    used, has = layout["memory_bytes"] / _GIB, device.memory_bytes / _GIB
    options = ", ".join(f"{name}={value!r}" for name, value in layout["options"].items())
    ends = f"{layout['low_seconds']:.3g} to {layout['high_seconds']:.3g}"
    yield "layout", f"{layout['layout']}"
    yield "options", f"ModelParallel({options})"
    yield "memory", f"{used:.3g} GiB of {has:.3g} on the fullest rank"
    yield "step", f"{layout['step_seconds']:.3g} s ({ends}), {layout['samples']:,} samples"
    yield "epoch", f"{span(offer.epoch_hours, ' h')}, {span(offer.epoch_dollars, ' USD')}"
    yield "all epochs", f"{span(offer.hours, ' h')}, {span(offer.dollars, ' USD')} on demand"
    spot = offer.spot_dollars
    yield "spot", "price unknown" if spot is None else f"{span(spot, ' USD')}, from your file"


def _table(advice: Advice, training: TrainingWork) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("cluster", "layout"):
        table.add_column(name, no_wrap=True)
    for name in ("GiB", "step s", "hours", "USD on demand", "USD spot", "batch", "LR x"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limits", no_wrap=True)
    for each in advice.front:
        layout = each.layout
        assert layout is not None
        assert each.hours is not None
        assert each.dollars is not None
        table.add_row(
            each.name,
            layout["family"],
            f"{layout['memory_bytes'] / _GIB:.3g}",
            f"{layout['step_seconds']:.3g}",
            span(each.hours),
            span(each.dollars),
            "unknown" if each.spot_dollars is None else span(each.spot_dollars),
            f"{layout['samples']:,}",
            f"{each.learning_rate_factor:g}",
            verdict_of(each, training).value.replace("_", " "),
        )
    return table


def _assumptions(advice: Advice, answer: dict[str, Any], omitted: list[str]) -> Iterator[str]:
    yield (
        "Hours are those of steps: start of hosts, downloads, evaluation and checkpoints come on"
        " top. Compared are expected figures; ranges are in parentheses."
    )
    prices: dict[str, list[str]] = {}
    for each in advice.offers:
        price, name = each.candidate.price, each.candidate.instance_type
        where = price.region or "region not stated"
        known = prices.setdefault(f"{where}; {price.source}", [])
        text = f"{name} {price.usd_per_hour:g}"
        if text not in known:
            known.append(text)
    for source, texts in prices.items():
        yield f"USD per hour of a host: {', '.join(texts)} ({source})."
    if omitted:
        yield f"Not compared, because their price is unknown: {', '.join(omitted)}."
    yield from answer["assumptions"]
