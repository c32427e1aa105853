# SPDX-License-Identifier: Apache-2.0
"""Warnings about how a job sends gradients on its instance type, given before the job starts.

smdist sends the tensors of CPUs and of GPUs, the latter through the memory of their host. A script
may have NCCL send them instead, and the instance type decides over which links. A warning does not
mention facts that are unknown for the instance type.

NCCL uses EFA only through a plugin, and refuses ranks that share a GPU. The source is NCCL 2.29.7,
which is part of PyPI's torch 2.13.0, read 2026-11-21.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any, Final

from sagemaker_dist.catalog import Instance, training_instances
from sagemaker_dist.planning.job import Job

_SMDIST: Final = 'init_process_group("smdist")'
_SPLIT: Final = "smp.init()"  # NCCL sends the gradients of GPUs where it is installed
_ANY: Final = 'init_process_group("smdist"), or "nccl",'
_HINT: Final = (
    "Use {} in the script, and an image with a CUDA build of torch: sagemaker-dist image build"
    " --accelerator cuda."
)
_NOT_RUN: Final = "This has not yet run on a GPU."


def transport_warning(job: Job) -> str | None:
    """Return a warning about how gradients are sent on the job's instance type.

    Returns None if there is nothing to warn about, or the instance type is unknown.
    """
    kind, count = job.training_hosts
    instance = training_instances().get(str(kind))
    if not job.distribution.is_launched or instance is None:
        return None
    engine = job.distribution.engine
    if job.kind == "TensorFlow" and engine is None:  # TensorFlow's own strategies
        return " ".join(_host_sentences(instance, None)) or None
    splits = job.distribution.model is not None
    text = describe_transport(
        instance,
        processes_per_host=engine.processes_per_host if engine else None,
        num_hosts=_integer(count),
        backends=_backends(job),
    )
    if text and splits and instance.has_gpu:
        return f"{text} Activations between stages are sent through the memory of the hosts."
    return text


def describe_transport(
    instance: Instance,
    *,
    processes_per_host: int | None = None,
    num_hosts: int | None = None,
    backends: str | None = _SMDIST,
) -> str | None:
    """Return a warning that describes how gradients are sent on an instance type.

    Returns None if there is nothing to warn about.

    Args:
        instance: Facts about the instance type.
        processes_per_host: Ranks on each host. Default None: one rank per GPU.
        num_hosts: Hosts of the job; None if unknown.
        backends: Call that initializes the backends of torch on GPUs, such as
            'init_process_group("smdist")'. The warning recommends this call. None for TensorFlow.
    """
    sentences: list[str] = []
    if instance.has_gpu and backends is None:
        sentences += _copied_sentences(instance, processes_per_host, num_hosts)
    elif instance.has_gpu and backends == _SMDIST:
        sentences += _staged_sentences(instance, processes_per_host, num_hosts)
    elif instance.has_gpu and backends:
        sentences += _nccl_sentences(instance, processes_per_host, num_hosts, backends)
    elif instance.is_neuron:
        sentences += _neuron_sentences(instance, processes_per_host)
    sentences += _host_sentences(instance, processes_per_host)
    return " ".join(sentences) or None


def _backends(job: Job) -> str | None:
    if job.kind == "TensorFlow":
        return None
    if job.distribution.model is not None:
        return _SPLIT
    return _SMDIST if job.distribution.engine else _ANY


def _integer(count: Any) -> int | None:
    try:
        return index(count)
    except TypeError:  # a pipeline variable, left out, or a fault reported elsewhere
        return None


def _staged_sentences(
    instance: Instance, requested: int | None, num_hosts: int | None
) -> Iterator[str]:
    ranks = instance.num_accelerators if requested is None else requested
    yield f"{instance.name} has {_accelerators(instance)}."
    yield _HINT.format(_SMDIST)
    if ranks == 1 and num_hosts == 1:
        yield "A job of one rank has no gradients to send."
    else:
        sent = _between_hosts(instance, num_hosts)
        yield (
            "smdist copies gradients of GPUs to the memory of their host, and sums them there"
            f"{f'; it sends them {sent}' if sent else ''}. {_NOT_RUN}"
        )
        if sent and instance.num_efa:
            yield f"EFA ({_count(instance.num_efa, 'interface')}) is not used."
    yield from _share_sentences(instance, ranks, has_nccl=False)


def _nccl_sentences(
    instance: Instance, requested: int | None, num_hosts: int | None, backends: str
) -> Iterator[str]:
    ranks = instance.num_accelerators if requested is None else requested
    yield f"{instance.name} has {_accelerators(instance)}."
    yield _HINT.format(backends)
    ways = list(_ways(instance, min(ranks, instance.num_accelerators), num_hosts))
    if ways:
        yield f"NCCL sends gradients {', and '.join(ways)}."
    elif ranks == 1:
        yield "A job of one rank has no gradients to send."
    if instance.num_efa and (num_hosts is None or num_hosts > 1):
        yield (
            f"For EFA ({_count(instance.num_efa, 'interface')}), NCCL needs its plugin aws-ofi-nccl"
            " in the image: sagemaker-dist image build --nccl-plugin FILE."
        )
    yield from _share_sentences(instance, ranks, has_nccl=True)


def _copied_sentences(
    instance: Instance, requested: int | None, num_hosts: int | None
) -> Iterator[str]:
    ranks = instance.num_accelerators if requested is None else requested
    yield (
        f"{instance.name} has {_accelerators(instance)}; TensorFlow copies gradients from GPUs to"
        " the memory of their host, where smdist sums them."
    )
    if num_hosts is None or num_hosts > 1:
        yield f"Between hosts, smdist sends them over TCP{_rate(instance)}."
    if ranks < instance.num_accelerators:
        yield from _share_sentences(instance, ranks, has_nccl=False)


def _ways(instance: Instance, num_used: int, num_hosts: int | None) -> Iterator[str]:
    """Yield texts such as "between hosts over TCP", one for each link that NCCL uses between GPUs.

    `num_used` is the number of GPUs on each host that ranks use; `num_hosts` is the number of
    hosts, None if unknown.
    """
    if num_used > 1:
        link = instance.accelerator_link
        yield "between the GPUs of a host" + (f" over {link}" if link else "")
    between = _between_hosts(instance, num_hosts)
    if between:
        yield between


def _between_hosts(instance: Instance, num_hosts: int | None) -> str:
    """Return a text such as "between hosts over TCP"; "" for a job of one host."""
    if num_hosts is None:
        return f"between hosts, if there are several, over TCP{_rate(instance)}"
    return f"between hosts over TCP{_rate(instance)}" if num_hosts > 1 else ""


def _rate(instance: Instance) -> str:
    best, sustained = instance.network_gbps, instance.network_sustained_gbps
    if best is None:
        return ""
    if instance.supports_efa:  # the bandwidth is that of EFA over all network cards
        return f", which may not fill the network's {best:g} Gbit/s"
    if sustained is None or sustained == best:
        return f" with up to {best:g} Gbit/s"
    return f" with {sustained:g} Gbit/s, and up to {best:g} Gbit/s for some minutes"


def _share_sentences(instance: Instance, ranks: int, *, has_nccl: bool) -> Iterator[str]:
    num_gpus = instance.num_accelerators
    if ranks > num_gpus > 0:
        result = "NCCL refuses ranks that share a GPU" if has_nccl else "ranks share GPUs"
        yield (
            f"processes_per_host is {ranks}, and a host has {_count(num_gpus, 'GPU')}: {result}."
            " The default is one rank per GPU."
        )
    elif ranks < num_gpus:
        yield (
            f"processes_per_host is {ranks}: {num_gpus - ranks} of the {num_gpus} GPUs of a host"
            " are idle, unless a rank uses several GPUs."
        )


def _neuron_sentences(instance: Instance, requested: int | None) -> Iterator[str]:
    yield (
        f"{instance.name} has {_accelerators(instance)}, and smdist sends tensors of CPUs and GPUs"
        " only: the Neuron SDK in the image must send the others."
    )
    if requested is None:
        yield "processes_per_host is left out: each host starts one rank."


def _host_sentences(instance: Instance, requested: int | None) -> Iterator[str]:
    num_vcpus = instance.num_vcpus
    if requested is not None and num_vcpus is not None and requested > num_vcpus:
        yield (
            f"processes_per_host is {requested}, and a host of {instance.name} has"
            f" {_count(num_vcpus, 'vCPU')}, which the ranks share."
        )
    if instance.architecture == "arm64":
        yield (
            f"{instance.name} is {instance.architecture}: build the image with"
            f" sagemaker-dist image build --platform {instance.platform}."
        )


def _accelerators(instance: Instance) -> str:
    kind = "GPU" if instance.has_gpu else "Neuron accelerator"
    number = _count(instance.num_accelerators, kind) if instance.num_accelerators else f"{kind}s"
    return f"{number} ({instance.accelerator})" if instance.accelerator else number


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
