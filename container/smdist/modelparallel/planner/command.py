# SPDX-License-Identifier: Apache-2.0
"""Run of the planner, from its command line to the exit status.

The exit status is 0 for success, 1 if this machine lacks something, 2 if the request or the model
file is wrong, and 130 after an interrupt by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import DistError, OptionError, SetupError
from smdist.modelparallel.core import calibration
from smdist.modelparallel.core.calibration import Calibration
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.default_links import PROCESSES
from smdist.modelparallel.core.layout import Machine
from smdist.modelparallel.core.layout.explain_layout import explain, prediction_text
from smdist.modelparallel.core.layout.machine_speed import measured_layers
from smdist.modelparallel.core.layout.measured_machine import measured_machine
from smdist.modelparallel.picture import check_path
from smdist.modelparallel.planner.arguments import AUTO, read_arguments
from smdist.modelparallel.planner.cluster_json import read_cluster
from smdist.modelparallel.planner.framework import fastest_device, imports_keras, is_keras
from smdist.modelparallel.planner.model_file import ModelFile
from smdist.modelparallel.planner.stdout_redirect import stdout_to_stderr

if TYPE_CHECKING:
    from smdist.modelparallel.picture.drawable_plan import Plan

_FAILED: Final = 1
_USAGE: Final = 2
_INTERRUPTED: Final = 130
_TORCH: Final = "2.13"
_PROGRESS: Final = "smdist.modelparallel.torch.planning.sampler"


def main(command_line: Sequence[str] | None = None) -> int:
    """Make a plan, print it, and return the exit status.

    Args:
        command_line: Arguments without the program's name; None for the arguments of this process.
    """
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger(_PROGRESS).setLevel(logging.INFO)
    is_json = False
    try:
        arguments = read_arguments(command_line)
        is_json = arguments.json
        _run(arguments)
    except OptionError as error:
        return _report(error, _USAGE, is_json=is_json)
    except DistError as error:
        return _report(error, _FAILED, is_json=is_json)
    except KeyboardInterrupt:
        sys.stderr.write("planner: interrupted\n")
        return _INTERRUPTED
    return 0


def _run(arguments: argparse.Namespace) -> None:
    measured = _calibration(arguments)
    cluster = _cluster(arguments, measured)
    _check_paths(arguments)
    if not imports_keras(arguments.file):
        _require_torch()
    with stdout_to_stderr():  # standard output has the plan only
        plan, predicted, layout = _make_plan(
            ModelFile(arguments.file), cluster, arguments, measured
        )
    if arguments.save is not None:
        plan.save(arguments.save)
    if arguments.plot is not None:
        plan.plot(arguments.plot)
    if arguments.json:
        sys.stdout.write(json.dumps(plan.document(), indent=2) + "\n")
    else:
        sys.stdout.write(plan.explain(predicted).rstrip("\n") + "\n")
        if layout:
            sys.stdout.write("\n" + layout)


def _make_plan(
    file: ModelFile, cluster: Cluster, arguments: argparse.Namespace, measured: Calibration | None
) -> tuple[Plan, str, str]:
    """Return the plan, its predicted time and the explanation of its layout, as texts.

    The texts are "" if no layout was searched.
    """
    if arguments.measure and imports_keras(arguments.file):
        _take_threads_of_rank(cluster.ranks_per_host, _limit_tensorflow)
    model = file.model(with_values=arguments.measure)
    if is_keras(model):
        return _keras_plan(file, model, cluster, arguments), "", ""
    if arguments.measure:
        machine = Machine(cluster=cluster, products=measured_layers())
    elif measured is not None:
        machine = measured_machine(cluster, measured)
    else:
        machine = Machine(cluster=cluster)
    return _torch_plan(file, model, machine, arguments)


def _torch_plan(
    file: ModelFile, model: Any, machine: Machine, arguments: argparse.Namespace
) -> tuple[Plan, str, str]:
    from smdist.modelparallel.torch.planning.layout_plan import plan_with_layout

    device = fastest_device() if arguments.measure else "cpu"
    if arguments.measure and device == "cpu":
        _take_threads_of_rank(machine.cluster.ranks_per_host, _limit_torch)
    made = plan_with_layout(
        model,
        file.example(device),
        machine,
        pipeline_parallel_degree=arguments.pipeline_parallel_degree,
        data_parallel_degree=arguments.data_parallel_degree,
        costs=_costs(arguments),
        state=_state(arguments),
        **_options(arguments),
    )
    if made.search is None:
        return made.plan, "", ""
    assert made.plan.forecast is not None
    predicted = prediction_text(made.search, made.plan.forecast)
    return made.plan, predicted, explain(made.search, made.machine, made.unsplit)


def _take_threads_of_rank(ranks_per_host: int, limit: Callable[[int], None]) -> None:
    """Limit this process to the threads that each rank of a host has: the cores divided by ranks.

    Args:
        ranks_per_host: Number of ranks on each host.
        limit: Function that limits the framework to a number of threads.
    """
    cores = len(os.sched_getaffinity(0))
    threads = max(1, cores // ranks_per_host)
    if threads < cores:
        limit(threads)
        how = f"{threads} of the threads, as each of {ranks_per_host} ranks of a host has"
        sys.stderr.write(f"planner: measuring with {how}\n")


def _limit_torch(threads: int) -> None:
    import torch

    torch.set_num_threads(min(threads, torch.get_num_threads()))


def _limit_tensorflow(threads: int) -> None:
    """Limit the threads of an operation; this must come before TensorFlow's first operation."""
    import tensorflow

    tensorflow.config.threading.set_intra_op_parallelism_threads(threads)


def _keras_plan(
    file: ModelFile, model: Any, cluster: Cluster, arguments: argparse.Namespace
) -> Plan:
    from smdist.modelparallel.tensorflow.keras_api.plan_model import plan

    replicas = arguments.data_parallel_degree
    options = ModelParallel(
        pipeline_parallel_degree=arguments.pipeline_parallel_degree, **_options(arguments)
    )
    return plan(
        model,
        file.keras_example(),
        cluster,
        options,
        costs=_costs(arguments),
        state=_state(arguments),
        data_parallel_degree=None if replicas == AUTO else replicas,
    )


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "device_memory": arguments.device_memory,
        "microbatches": arguments.microbatches,
        "pipeline": arguments.pipeline,
        "active_microbatches": arguments.active_microbatches,
        "virtual_stages": arguments.virtual_stages,
        "optimize": arguments.optimize,
        "memory_weight": arguments.memory_weight,
        "auto_partition": not arguments.no_auto_partition,
        "default_partition": arguments.default_partition,
    }


def _costs(arguments: argparse.Namespace) -> str:
    return "measure" if arguments.measure else "estimate"


def _state(arguments: argparse.Namespace) -> StateBytes:
    weight, gradient, optimizer = arguments.state_bytes or (4.0, 4.0, 8.0)
    return StateBytes(weight=weight, gradient=gradient, optimizer=optimizer)


def _cluster(arguments: argparse.Namespace, measured: Calibration | None) -> Cluster:
    counts = {"--hosts": arguments.hosts, "--ranks-per-host": arguments.ranks_per_host}
    given = [name for name, count in counts.items() if count is not None]
    if arguments.cluster is not None and given:
        what = f"{given[0]} and --cluster are both given"
        why = "--cluster already has this number"
        about = given[0].removeprefix("--").replace("-", "_")
        raise OptionError(what, why, f"Leave {given[0]} out", about=about, kind="conflict")
    if arguments.cluster is None and not given:
        what, why = (
            "--cluster is missing",
            "the planner needs to know the cluster for the model",
        )
        hint = "Pass --cluster, or --hosts and --ranks-per-host"
        raise OptionError(what, why, hint, about="cluster", kind="missing")
    if arguments.cluster is not None:
        cluster = read_cluster(arguments.cluster)
    else:
        cluster = Cluster(
            num_hosts=arguments.hosts or 1,
            ranks_per_host=arguments.ranks_per_host or 1,
            inside=PROCESSES,
            across=PROCESSES,
        )
    if measured is not None:
        cluster = measured.applied_to(cluster)
    if arguments.device_flops is None:
        return cluster
    return replace(cluster, device=replace(cluster.device, flops_per_second=arguments.device_flops))


def _calibration(arguments: argparse.Namespace) -> Calibration | None:
    """Return the calibration of `--calibration`, and print what it is; None without the option.

    Raises:
        OptionError: The file is wrong, or `--measure` is given, which measures on its own.
    """
    if arguments.calibration is None:
        return None
    if arguments.measure:
        what, why = (
            "--calibration and --measure are both given",
            "--measure takes the model's times",
        )
        raise OptionError(what, why, "Leave one out", about="calibration", kind="conflict")
    found = calibration.load(arguments.calibration)
    flops = found.flops_per_second(found.working_dtype)
    sys.stderr.write(f"{found}: {flops:.3g} FLOP/s in {found.working_dtype}\n")
    return found


def _check_paths(arguments: argparse.Namespace) -> None:
    """Check that output files can be written, before the plan is made, which may take minutes.

    Raises:
        OptionError: A folder does not exist, or the suffix of the picture is wrong.
    """
    if arguments.plot is not None:
        check_path(arguments.plot)
    path = arguments.save
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        why = "it is a folder" if path.is_dir() else f"the folder {path.parent} does not exist"
        hint = "Pass the path of a file in a folder that exists"
        raise OptionError(f"{path} cannot be written", why, hint, about="save")


def _require_torch() -> None:
    try:
        import torch  # noqa: F401 - checks only that torch is installed
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise SetupError(
            f"torch is not installed for {Path(sys.executable)}",
            "the planner records the model's forward pass with torch",
            f"Run: pip install torch=={_TORCH}.0",
        ) from error


def _report(error: DistError, status: int, *, is_json: bool) -> int:
    """Report an error to the user, and return `status`.

    The text is written to standard error.

    Args:
        error: Error to report.
        status: Exit status for this error.
        is_json: True if the error's fields are written as JSON to standard output, too.
    """
    if is_json:
        sys.stdout.write(json.dumps({"error": error.as_dict()}, indent=2) + "\n")
    sys.stderr.write(f"planner: {error}\n")
    return status
