# SPDX-License-Identifier: Apache-2.0
"""How gradients will travel on an instance type, said before a job starts.

smdist carries the tensors of CPUs alone. What carries the others, and over
what, follows from an instance's facts; a fact that nobody knows is left out of
the text. NCCL (2.29.7 in PyPI's torch 2.13.0, read 2026-11-21) uses EFA through
a plugin alone, and refuses ranks that share a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any, Final

from sagemaker_dist.catalog import Instance, training_instances
from sagemaker_dist.planning.job import Job

_OURS: Final = 'init_process_group("cpu:smdist,cuda:nccl")'
_SPLIT: Final = "smp.init()"  # which starts these
_ANY: Final = 'init_process_group("nccl"), or "cpu:smdist,cuda:nccl",'
_MEND: Final = (
    "Use {} in the script, and an image with a CUDA build"
    " of torch: builds for the CPU have no NCCL."
)


def travel_warning(job: Job) -> str | None:
    """What to know before ranks run on this instance type, or None."""
    kind, count = job.training_hosts
    instance = training_instances().get(str(kind))
    if not job.distribution.is_launched or instance is None:
        return None
    ours = job.distribution.ours
    if job.kind == "TensorFlow" and ours is None:  # its own strategies
        return " ".join(_host_sentences(instance, None)) or None
    splits = job.distribution.model is not None
    said = describe_travel(
        instance,
        processes_per_host=ours.processes_per_host if ours else None,
        num_hosts=_integer(count),
        backends=_backends(job),
    )
    if said and splits and instance.has_gpu:
        return f"{said} What stages send each other goes through the memory of their hosts."
    return said


def describe_travel(
    instance: Instance,
    *,
    processes_per_host: int | None = None,
    num_hosts: int | None = None,
    backends: str | None = _OURS,
) -> str | None:
    """The same of an instance's facts.

    Args:
        processes_per_host: None is one rank per GPU.
        num_hosts: None: nobody counted them.
        backends: How a script of torch begins; None is one of TensorFlow.
    """
    sentences: list[str] = []
    if instance.has_gpu and backends is None:
        sentences += _copied_sentences(instance, processes_per_host, num_hosts)
    elif instance.has_gpu and backends:
        sentences += _gpu_sentences(instance, processes_per_host, num_hosts, backends)
    elif instance.is_neuron:
        sentences += _neuron_sentences(instance, processes_per_host)
    sentences += _host_sentences(instance, processes_per_host)
    return " ".join(sentences) or None


def _backends(job: Job) -> str | None:
    if job.kind == "TensorFlow":
        return None
    if job.distribution.model is not None:
        return _SPLIT
    return _OURS if job.distribution.ours else _ANY


def _integer(count: Any) -> int | None:
    try:
        return index(count)
    except TypeError:  # a pipeline's, left out, or a fault that is reported elsewhere
        return None


def _gpu_sentences(
    instance: Instance, asked: int | None, num_hosts: int | None, backends: str
) -> Iterator[str]:
    ranks = instance.num_accelerators if asked is None else asked
    yield f"{instance.name} has {_accelerators(instance)}; smdist carries CPU tensors alone so far."
    yield _MEND.format(backends)
    ways = list(_ways(instance, min(ranks, instance.num_accelerators), num_hosts))
    if ways:
        yield f"Gradients then travel by NCCL: {', and '.join(ways)}."
    elif ranks == 1:
        yield "A job of one rank has no gradients to send."
    if instance.num_efa and (num_hosts is None or num_hosts > 1):
        yield (
            f"EFA ({_count(instance.num_efa, 'interface')}) takes NCCL's plugin aws-ofi-nccl in the"
            " image; the default image has none."
        )
    yield from _share_sentences(instance, ranks)


def _copied_sentences(
    instance: Instance, asked: int | None, num_hosts: int | None
) -> Iterator[str]:
    ranks = instance.num_accelerators if asked is None else asked
    yield (
        f"{instance.name} has {_accelerators(instance)}; TensorFlow copies their gradients to the"
        " memory of their host, where smdist sums them."
    )
    if num_hosts is None or num_hosts > 1:
        yield f"Between hosts they travel over TCP{_rate(instance)}."
    if ranks < instance.num_accelerators:
        yield from _share_sentences(instance, ranks)


def _ways(instance: Instance, num_used: int, num_hosts: int | None) -> Iterator[str]:
    """Over what NCCL sends, of hosts on which so many GPUs are used."""
    if num_used > 1:
        link = instance.accelerator_link
        yield "between the GPUs of a host" + (f" over {link}" if link else "")
    if num_hosts is None:
        yield f"between hosts, if there are several, over TCP{_rate(instance)}"
    elif num_hosts > 1:
        yield f"between hosts over TCP{_rate(instance)}"


def _rate(instance: Instance) -> str:
    best, lasting = instance.network_gbps, instance.network_sustained_gbps
    if best is None:
        return ""
    if instance.supports_efa:  # the figure is EFA's, over all network cards
        return f", which may not fill the network's {best:g} Gbit/s"
    if lasting is None or lasting == best:
        return f" with up to {best:g} Gbit/s"
    return f" with {lasting:g} Gbit/s, in bursts {best:g}"


def _share_sentences(instance: Instance, ranks: int) -> Iterator[str]:
    num_gpus = instance.num_accelerators
    if ranks > num_gpus > 0:
        yield (
            f"processes_per_host is {ranks}, and a host has {_count(num_gpus, 'GPU')}: NCCL"
            " refuses ranks that share one. Left out, it is one rank per GPU."
        )
    elif ranks < num_gpus:
        yield (
            f"processes_per_host is {ranks}: {num_gpus - ranks} of the {num_gpus} GPUs of a host"
            " stand idle, unless ranks use several."
        )


def _neuron_sentences(instance: Instance, asked: int | None) -> Iterator[str]:
    yield (
        f"{instance.name} has {_accelerators(instance)}, and smdist carries CPU tensors alone:"
        " others travel by what the image's Neuron SDK brings."
    )
    if asked is None:
        yield "Nobody said how many ranks a host has: each starts one."


def _host_sentences(instance: Instance, asked: int | None) -> Iterator[str]:
    if asked is not None and instance.num_vcpus is not None and asked > instance.num_vcpus:
        yield (
            f"processes_per_host is {asked}, and a host of {instance.name} has"
            f" {_count(instance.num_vcpus, 'vCPU')}: ranks take turns."
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
