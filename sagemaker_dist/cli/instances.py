# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist instances list | show | refresh`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sagemaker_dist.catalog import (
    SHIPPED,
    Instance,
    read_table,
    refresh_table,
    training_instances,
    write_table,
)
from sagemaker_dist.errors import OptionError, SetupError, closest
from sagemaker_dist.packaging import boto_session

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

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
)
_TEXTS: Final = frozenset({"type", "accelerators", "link", "architecture"})  # others are numbers
_WIDTH: Final = 160  # more than it takes: a narrow terminal wraps, nothing is cut
_CAPABILITIES: Final = ("is_accelerated", "has_gpu", "is_neuron", "has_fast_link", "supports_efa")


def add(commands: Commands) -> None:
    """Add `instances` and its subcommands."""
    text = "say what the instance types of SageMaker training are"
    parser = commands.add_parser(
        "instances", help=text, description=f"{text[0].upper()}{text[1:]}."
    )
    steps = parser.add_subparsers(metavar="STEP", required=True)
    every = _step(steps, "list", "List every type, or those with accelerators.", _list)
    every.add_argument("--accelerated", action="store_true", help="those with accelerators")
    every.add_argument("--json", action="store_true", help="for programs")
    one = _step(steps, "show", "Say what is known of one type, and from where.", _show)
    one.add_argument("type", help="such as ml.p4d.24xlarge")
    one.add_argument("--json", action="store_true", help="for programs")
    again = _step(steps, "refresh", "Ask EC2 what the types are, and write the table.", _refresh)
    again.add_argument("--region", help="of EC2; default: AWS's own settings")
    again.add_argument("--profile", help="of AWS credentials")
    again.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        default=SHIPPED,
        help="default: the table of this installation",
    )


def _step(steps: Commands, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    parser = steps.add_parser(name, help=text[0].lower() + text[1:-1], description=text)
    parser.set_defaults(run=run)
    return parser


def _list(parsed: argparse.Namespace) -> None:
    chosen = [
        each
        for each in training_instances().values()
        if each.is_accelerated or not parsed.accelerated
    ]
    if parsed.json:
        _print_json([_document(each) for each in sorted(chosen, key=_order)])
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in _COLUMNS:
        justify: Any = "left" if column in _TEXTS else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for each in sorted(chosen, key=_order):
        table.add_row(*_cells(each))
    Console(highlight=False, width=_WIDTH).print(table)


def _show(parsed: argparse.Namespace) -> None:
    instance = _known(parsed.type)
    if parsed.json:
        _print_json(_document(instance))
        return
    for name, value in _rows(instance).items():
        _line(Text.assemble((f"{name:<14}", "dim"), value))
    for number, source in enumerate(instance.sources):
        _line(Text.assemble((f"{'' if number else 'sources':<14}", "dim"), source))


def _refresh(parsed: argparse.Namespace) -> None:
    session = boto_session(parsed.region, parsed.profile)
    done = refresh_table(session, before=read_table(SHIPPED))
    try:
        write_table(done.table, parsed.output)
    except OSError as error:
        mend = "Pass --output with a file that you may write"
        raise SetupError("the table cannot be written", str(error), mend) from error
    _line(f"{parsed.output}: {len(done.table.instances)} types, {len(done.described)} described")
    for what in ("kept", "added", "removed"):
        names = sorted(getattr(done, what))
        if names:
            _line(Text.assemble((f"{what:<14}", "dim"), ", ".join(names)))


def _known(name: str) -> Instance:
    instances = training_instances()
    if name not in instances:
        mend = closest(name, instances)
        if len(mend) > 200:  # every type there is would be no help
            mend = "Run sagemaker-dist instances list to see all"
        raise OptionError(f"type is {name!r}", "SageMaker training has no such instance type", mend)
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


def _rows(instance: Instance) -> dict[str, str]:
    cells = dict(zip(_COLUMNS, _cells(instance), strict=True))
    memory, cores = cells["GiB each"], instance.num_neuron_cores
    rows = {
        "type": cells["type"],
        "accelerators": f"{cells['accelerators']}, {memory} GiB each" if memory else "none",
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


def _document(instance: Instance) -> dict[str, Any]:
    derived = {name: getattr(instance, name) for name in _CAPABILITIES}
    return {**asdict(instance), **derived}


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2))  # noqa: T201  what a program reads


def _line(text: str | Text) -> None:
    Console(highlight=False, soft_wrap=True).print(text, soft_wrap=True)
