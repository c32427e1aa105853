# SPDX-License-Identifier: Apache-2.0
"""The command `sagemaker-dist instances list | show | refresh | spot`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from sagemaker_dist.catalog import (
    PRICE_LIST,
    SHIPPED,
    SPOT_PRICES,
    Instance,
    PastSpotJobs,
    Price,
    all_prices,
    check_region,
    fetch_prices,
    prices,
    read_prices,
    read_spot_jobs,
    read_table,
    refresh_table,
    training_instances,
    write_prices,
    write_table,
)
from sagemaker_dist.cli import screen
from sagemaker_dist.cli.shared_options import FILE, aws_options, complete_type, json_option
from sagemaker_dist.errors import OptionError, SetupError, closest
from sagemaker_dist.packaging import boto_session

_COLUMNS: Final = (
    "type",
    "accelerators",
    "GiB each",
    "link",
    "vCPUs",
    "GiB",
    "Gbit/s",
    "lasting",
    "EFA",
    "architecture",
    "USD/h",
)
_TEXTS: Final = frozenset({"type", "accelerators", "link", "architecture"})  # others are numbers
_WIDTH: Final = 160  # wider than the table: a narrow terminal wraps lines, cells are not cut
_WIDE: Final = 140  # width of all columns
_OMITTED: Final = frozenset({"link", "lasting", "architecture", "USD/h"})
_MORE: Final = (
    f"A terminal of {_WIDE} columns also shows link, lasting Gbit/s, architecture, price."
)
_CAPABILITIES: Final = ("is_accelerated", "has_gpu", "is_neuron", "has_fast_link", "supports_efa")


@click.group()
def instances() -> None:
    """Show facts about the instance types of SageMaker training."""


@instances.command("list")
@click.option("--accelerated", is_flag=True, help="Only types with accelerators.")
@click.option(
    "--region", metavar="NAME", help="Region of the prices. Default: the lowest known price."
)
@json_option
def list_types(accelerated: bool, region: str | None, as_json: bool) -> None:
    """List all instance types, or those with accelerators."""
    check_region(region)
    priced = {
        name: tuple(each for each in known if region in (None, each.region))
        for name, known in all_prices().items()
    }
    every = training_instances().values()
    chosen = sorted((each for each in every if each.is_accelerated or not accelerated), key=_order)
    if as_json:
        screen.print_json([_document(each, priced.get(each.name, ())) for each in chosen])
        return
    terminal = screen.console()
    is_narrow = terminal.is_terminal and terminal.width < _WIDE
    columns = [each for each in _COLUMNS if not (is_narrow and each in _OMITTED)]
    screen.show(_table(chosen, columns, priced), width=_WIDTH)
    if is_narrow:
        screen.paragraph(_MORE, style="dim")


@instances.command(short_help="Show the facts about one type.")
@click.argument("type", shell_complete=complete_type)
@json_option
def show(type: str, as_json: bool) -> None:  # noqa: A002 - as its help names it
    """Show the facts about one type, such as ml.p4d.24xlarge, with their sources."""
    instance, known = _known(type), prices(type)
    if as_json:
        screen.print_json(_document(instance, known))
        return
    screen.plain_facts(instance_rows(instance))
    lines = [
        f"{each.usd_per_hour:g} USD/h in {each.region or 'a region not stated'}: {each.source}"
        for each in known
    ]
    top, *others = lines or ["unknown; sagemaker-dist instances refresh reads it from AWS"]
    screen.plain_facts([("price", top), *(("", each) for each in others)])
    first, *more = instance.sources or ("",)
    screen.plain_facts([("sources", first), *(("", each) for each in more)])


@instances.command(short_help="Read facts and prices from AWS.")
@aws_options
@click.option(
    "--output",
    type=FILE,
    metavar="FILE",
    default=SHIPPED,
    help="Default: the table of this installation.",
)
@click.option(
    "--prices",
    "price_list",
    type=FILE,
    metavar="FILE",
    default=PRICE_LIST,
    help=f"File of prices. Default: {PRICE_LIST}.",
)
def refresh(region: str | None, profile: str | None, output: Path, price_list: Path) -> None:
    """Write a file of facts about the instance types, read from EC2, and one of their prices.

    The prices are those of the region, from AWS's price list; other regions' prices in the file
    are kept.
    """
    session = boto_session(region, profile)
    done = refresh_table(session, before=read_table(SHIPPED))
    _write("--output", output, lambda: write_table(done.table, output))
    screen.line(f"{output}: {len(done.table.instances)} types, {len(done.described)} described")
    for what in ("kept", "added", "removed"):
        screen.plain_facts({what: ", ".join(sorted(getattr(done, what)))})
    fetched, price_list = fetch_prices(session), price_list.expanduser()
    notes = [fetched, *(each for each in read_prices(price_list) if each.region != fetched.region)]
    _write("--prices", price_list, lambda: write_prices(notes, price_list))
    screen.line(f"{price_list}: {len(fetched.usd_per_hour)} prices in {fetched.region}")


@instances.command(short_help="Find what spot instances cost in your past jobs.")
@aws_options
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=90,
    show_default=True,
    help="Jobs that were created in so many days up to now.",
)
@click.option(
    "--most",
    type=click.IntRange(1),
    default=500,
    show_default=True,
    help="Largest number of jobs to read, the latest first.",
)
@click.option(
    "--prices",
    "file",
    type=FILE,
    metavar="FILE",
    default=SPOT_PRICES,
    help=f"File of prices. Default: {SPOT_PRICES}.",
)
def spot(region: str | None, profile: str | None, days: int, most: int, file: Path) -> None:
    """Write a file of prices on spot instances, from what your past jobs paid.

    AWS publishes no such prices for training jobs. SageMaker reports which part of the time of a
    job was billed; this part of the on-demand price is the price. Other regions' prices in the file
    are kept.
    """
    session, file = boto_session(region, profile), file.expanduser()
    with Console(stderr=True).status("jobs are listed") as status:
        past = read_spot_jobs(
            session, days=days, most=most, tick=lambda number: status.update(f"{number} jobs read")
        )
    if not past.by_type:
        raise SetupError(
            f"there is no spot price to find in {past.region}",
            f"none of the {past.num_read} jobs since {past.since} ran on spot instances to its end",
            "Pass --days to look back further, or --region for the region of your jobs",
            about="--days",
            kind="no_prices",
        )
    note = past.note()
    others = [each for each in read_prices(file) if each.region != past.region]
    found = note.spot_usd_per_hour
    if found:
        _write("--prices", file, lambda: write_prices([note, *others], file))
    for name, text in _spot_rows(past, found).items():
        screen.plain_facts({name: text})
    screen.line(
        f"{file}: {len(found)} spot prices in {past.region}" if found else "nothing written"
    )


def _spot_rows(past: PastSpotJobs, found: Mapping[str, float]) -> dict[str, str]:
    """Return a text for each instance type: its price on spot instances, and its jobs."""
    rows = {}
    for name, jobs in sorted(past.by_type.items()):
        hours, paid = jobs.training_seconds / 3600, 100 * jobs.paid_share
        ran = f"{jobs.num_jobs} jobs of {hours:.1f} h in all, {paid:.0f} % of the time billed"
        price = "on-demand price unknown; sagemaker-dist instances refresh reads it"
        if name in found:
            price = f"{found[name]:g} USD/h"
        rows[name] = f"{price}, {ran}"
    return rows


def _write(option: str, path: Path, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        hint = f"Pass {option} with a file that you may write"
        raise SetupError(f"the file {path} cannot be written", str(error), hint) from error


def _table(
    chosen: Iterable[Instance], columns: Sequence[str], priced: Mapping[str, Sequence[Price]]
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        justify: Any = "left" if column in _TEXTS else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for each in chosen:
        facts = (*_cells(each), _lowest(priced.get(each.name, ())))
        cells = dict(zip(_COLUMNS, facts, strict=True))
        table.add_row(*(cells[column] for column in columns))
    return table


def _known(name: str) -> Instance:
    instances = training_instances()
    if name not in instances:
        hint = closest(name, instances)
        if len(hint) > 200:  # a list of all types does not help
            hint = "Run sagemaker-dist instances list to see all"
        raise OptionError(f"type is {name!r}", "SageMaker training has no such instance type", hint)
    return instances[name]


def _order(instance: Instance) -> tuple[str, int, int, str]:
    size = instance.num_accelerators, instance.num_vcpus or 0
    return (instance.family, *size, instance.name)


def _cells(instance: Instance) -> Iterable[str]:
    has = instance.is_accelerated
    return (
        instance.name,
        f"{instance.num_accelerators} {instance.accelerator}" if has else "",
        _number(instance.accelerator_memory_gib) if has else "",
        instance.accelerator_link or "",
        _number(instance.num_vcpus),
        _number(instance.memory_gib),
        _number(instance.network_gbps),
        _number(instance.network_sustained_gbps),
        _number(instance.num_efa),
        instance.architecture or "?",
    )


def instance_rows(instance: Instance) -> dict[str, str]:
    """Return the known facts about an instance type as texts, by the name of the fact."""
    cells = dict(zip(_COLUMNS, _cells(instance), strict=False))
    memory, cores = cells["GiB each"], instance.num_neuron_cores
    capability = instance.compute_capability
    code = f", compute capability {capability}" if capability else ""
    rows = {
        "type": cells["type"],
        "accelerators": f"{cells['accelerators']}, {memory} GiB each{code}" if memory else "none",
        "Neuron cores": "" if cores is None else str(cores),
        "link": cells["link"],
        "vCPUs": cells["vCPUs"],
        "memory": f"{cells['GiB']} GiB",
        "network": _network(instance),
        "EFA": f"{cells['EFA']} interfaces" if instance.num_efa != 0 else "none",
        "architecture": cells["architecture"],
    }
    return {name: value for name, value in rows.items() if value}


def _network(instance: Instance) -> str:
    best, lasting = instance.network_gbps, instance.network_sustained_gbps
    if best == lasting:
        return f"{_number(best)} Gbit/s"
    return f"{_number(best)} Gbit/s at best, {_number(lasting)} lasting"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"


def _lowest(known: Sequence[Price]) -> str:
    if not known:
        return "?"
    lowest = min(known, key=lambda each: each.usd_per_hour)
    return f"{lowest.usd_per_hour:g} {lowest.region or '-'}"


def _document(instance: Instance, known: Sequence[Price]) -> dict[str, Any]:
    derived = {name: getattr(instance, name) for name in _CAPABILITIES}
    return {**asdict(instance), **derived, "prices": [asdict(each) for each in known]}
