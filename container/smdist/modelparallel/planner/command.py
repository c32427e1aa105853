# SPDX-License-Identifier: Apache-2.0
"""Run the planner from its arguments to an exit status.

Exit status: 0 success; 1 this machine lacks something; 2 the request or the model file is wrong;
130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sagemaker_dist.errors import DistError, OptionError, SetupError
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.default_links import PROCESSES
from smdist.modelparallel.picture import check_path
from smdist.modelparallel.planner.arguments import read_arguments
from smdist.modelparallel.planner.cluster_json import read_cluster
from smdist.modelparallel.planner.model_file import ModelFile
from smdist.modelparallel.planner.stdout_redirect import stdout_to_stderr

if TYPE_CHECKING:
    from smdist.modelparallel.torch.planning.make_plan import Plan

_FAILED: Final = 1
_USAGE: Final = 2
_INTERRUPTED: Final = 130
_TORCH: Final = "2.13"
_PROGRESS: Final = "smdist.modelparallel.torch.planning.sampler"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make and print a plan; return the exit status."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger(_PROGRESS).setLevel(logging.INFO)
    is_json = False
    try:
        said = read_arguments(arguments)
        is_json = said.json
        _run(said)
    except OptionError as error:
        return _say(error, _USAGE, is_json=is_json)
    except DistError as error:
        return _say(error, _FAILED, is_json=is_json)
    except KeyboardInterrupt:
        sys.stderr.write("planner: interrupted\n")
        return _INTERRUPTED
    return 0


def _run(said: argparse.Namespace) -> None:
    cluster = _cluster(said)
    _require_torch()
    _check_paths(said)
    with stdout_to_stderr():  # output of the model is kept out of the plan
        found = _planned(ModelFile(said.file), cluster, said)
    if said.save is not None:
        found.save(said.save)
    if said.plot is not None:
        found.plot(said.plot)
    if said.json:
        sys.stdout.write(json.dumps(found.document(), indent=2) + "\n")
    else:
        sys.stdout.write(found.explain().rstrip("\n") + "\n")


def _planned(file: ModelFile, cluster: Cluster, said: argparse.Namespace) -> Plan:
    from smdist.modelparallel.torch.planning.make_plan import plan

    weight, gradient, optimizer = said.state_bytes or (4.0, 4.0, 8.0)
    here = _fastest_device()
    return plan(
        file.model(here if said.measure else "meta"),
        file.example(here if said.measure else "cpu"),
        cluster,
        device_memory=said.device_memory,
        microbatches=said.microbatches,
        pipeline_parallel_degree=said.pipeline_parallel_degree,
        data_parallel_degree=said.data_parallel_degree,
        pipeline=said.pipeline,
        active_microbatches=said.active_microbatches,
        virtual_stages=said.virtual_stages,
        optimize=said.optimize,
        memory_weight=said.memory_weight,
        auto_partition=not said.no_auto_partition,
        default_partition=said.default_partition,
        costs="measure" if said.measure else "estimate",
        state=StateBytes(weight=weight, gradient=gradient, optimizer=optimizer),
    )


def _cluster(said: argparse.Namespace) -> Cluster:
    counts = {"--hosts": said.hosts, "--ranks-per-host": said.ranks_per_host}
    given = [name for name, count in counts.items() if count is not None]
    if said.cluster is not None and given:
        what, why = f"{given[0]} is given beside --cluster", "the cluster has this number too"
        raise OptionError(what, why, f"Leave {given[0]} out")
    if said.cluster is None and not given:
        what, why = (
            "--cluster is missing",
            "the planner needs the cluster that the model is split over",
        )
        hint = "Pass it, or --hosts and --ranks-per-host"
        raise OptionError(what, why, hint)
    if said.cluster is not None:
        cluster = read_cluster(said.cluster)
    else:
        cluster = Cluster(
            num_hosts=said.hosts or 1,
            ranks_per_host=said.ranks_per_host or 1,
            inside=PROCESSES,
            across=PROCESSES,
        )
    if said.device_flops is None:
        return cluster
    return replace(cluster, device=replace(cluster.device, flops_per_second=said.device_flops))


def _check_paths(said: argparse.Namespace) -> None:
    """Check output paths before any work, since a plan may take minutes."""
    if said.plot is not None:
        check_path(said.plot)
    if said.save is not None and not said.save.parent.is_dir():
        why = f"the folder {said.save.parent} does not exist"
        raise OptionError(
            f"{said.save} cannot be written", why, "Create the folder, or pass another path"
        )


def _fastest_device() -> str:
    """Return the device to measure on: this machine's accelerator, or "cpu"."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if found is None else str(found)


def _require_torch() -> None:
    try:
        import torch  # noqa: F401 - whether it is there
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise SetupError(
            f"{Path(sys.executable)} has no torch",
            "torch captures the model",
            f"Run: pip install torch=={_TORCH}.0",
        ) from error


def _say(error: DistError, status: int, *, is_json: bool) -> int:
    """People read the sentence on stderr; with --json, programs read the fields on stdout."""
    if is_json:
        sys.stdout.write(json.dumps({"error": error.as_dict()}, indent=2) + "\n")
    sys.stderr.write(f"planner: {error}\n")
    return status
