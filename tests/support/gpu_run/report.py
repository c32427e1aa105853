# SPDX-License-Identifier: Apache-2.0
"""Report of the parts that have run on a machine: build/gpu/report.md and report.json.

Each part keeps what it found in a file of its own, so that parts of several calls are in one
report. What was found on another machine, or with another state of the code, is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_run.machine import Machine
from gpu_run.results import Result

_SHOWN_LINES = 12  # of a failure's text; the log has all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step found."""

    name: str
    results: tuple[Result, ...]
    seconds: float
    is_of_peer: bool
    tables: str = ""

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the number of results by outcome."""
        return Counter(result.outcome for result in self.results)

    def of(self, outcome: str) -> list[Result]:
        """Return the results with an outcome."""
        return [result for result in self.results if result.outcome == outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReport:
    """Outcome of one part.

    Attributes:
        code: Name of the state of the code, such as a commit.
        when: Time in UTC at which the part began.
    """

    name: str
    code: str
    when: str
    device: str
    machine: Machine
    remarks: tuple[str, ...]
    steps: tuple[StepReport, ...]

    @property
    def has_passed(self) -> bool:
        """Return whether nothing has failed, other than a peer."""
        return not any(step.of("fail") for step in self.steps if not step.is_of_peer)


def keep(folder: Path, part: PartReport, order: Sequence[str]) -> Path:
    """Write a part's file, then the report of all parts in an order; return the report's path."""
    (folder / f"part-{part.name}.json").write_text(json.dumps(asdict(part), indent=1))
    parts = [each for each in _kept(folder, order) if _is_of_the_same(each, part)]
    missing = [name for name in order if name not in {each.name for each in parts}]
    (folder / "report.json").write_text(
        json.dumps({"parts": [asdict(each) for each in parts], "not_run": missing}, indent=1)
    )
    report = folder / "report.md"
    report.write_text(text_of(parts, missing))
    return report


def _kept(folder: Path, order: Sequence[str]) -> list[PartReport]:
    files = [folder / f"part-{name}.json" for name in order]
    return [_read(json.loads(file.read_text())) for file in files if file.exists()]


def _is_of_the_same(one: PartReport, other: PartReport) -> bool:
    return (one.code, one.device, one.machine) == (other.code, other.device, other.machine)


def _read(fields: dict[str, Any]) -> PartReport:
    machine = fields["machine"] | {"gpus": tuple(fields["machine"]["gpus"])}
    steps = tuple(
        StepReport(**(step | {"results": tuple(Result(**each) for each in step["results"])}))
        for step in fields["steps"]
    )
    known = {"machine": Machine(**machine), "steps": steps, "remarks": tuple(fields["remarks"])}
    return PartReport(**(fields | known))


def text_of(parts: Sequence[PartReport], missing: Sequence[str]) -> str:
    """Return the report in Markdown."""
    about = parts[0]
    lines = [f"# What ran on {_device(about)}", "", *_machine(about), ""]
    lines += ["| part | step | passed | failed | skipped | seconds |", "|---|---|---|---|---|---|"]
    lines += [_row(part, step) for part in parts for step in part.steps]
    lines += [f"\nNot run: {', '.join(missing)}.\n"] if missing else [""]
    for part in parts:
        for step in part.steps:
            lines += _details(step)
    return "\n".join(lines) + "\n"


def _device(part: PartReport) -> str:
    if part.device == "cuda":
        return f"{len(part.machine.gpus)} GPU" + "s" * (len(part.machine.gpus) > 1)
    return f"the device {part.device}, to try the command without a GPU"


def _machine(part: PartReport) -> list[str]:
    machine = part.machine
    hosts = machine.no_namespaces or "network namespaces"
    facts = {
        "GPUs": "; ".join(machine.gpus) or "none",
        "driver": machine.driver or "none",
        "torch": f"{machine.torch}, CUDA {machine.cuda}, NCCL {machine.nccl}",
        "machine": f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB,"
        f" {machine.kernel}, Python {machine.python}",
        "emulated hosts": hosts,
        "code": part.code,
        "begun": part.when,
    }
    rows = [f"| {name} | {value} |" for name, value in facts.items()]
    return ["| | |", "|---|---|", *rows, *(f"\n{remark}" for remark in part.remarks)]


def _row(part: PartReport, step: StepReport) -> str:
    counts = step.counts
    name = f"{step.name} (a peer)" if step.is_of_peer else step.name
    numbers = [str(counts.get(outcome, 0)) for outcome in ("pass", "fail", "skip")]
    return f"| {part.name} | {name} | {' | '.join(numbers)} | {step.seconds:.0f} |"


def _details(step: StepReport) -> list[str]:
    """Return the tables of a step, what failed, and what was skipped, by reason."""
    lines = [f"## {step.name}\n\n{step.tables}\n"] if step.tables else []
    if failed := step.of("fail"):
        lines.append(f"## {step.name}: failed\n")
        for result in failed:
            said = "\n".join(result.said.strip().splitlines()[-_SHOWN_LINES:])
            lines.append(f"`{result.name}` after {result.seconds:.0f} s\n\n```\n{said}\n```\n")
    reasons: dict[str, list[str]] = {}
    for result in step.of("skip"):
        reasons.setdefault(result.said.strip() or "no reason was given", []).append(result.name)
    if reasons:
        lines.append(f"## {step.name}: skipped\n")
        lines += [f"* {reason}: {', '.join(names)}" for reason, names in reasons.items()]
        lines.append("")
    return lines
