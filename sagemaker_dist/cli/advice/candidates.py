# SPDX-License-Identifier: Apache-2.0
"""Clusters that `sagemaker-dist advise` compares: instance types with their prices, and counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sagemaker_dist.catalog import Instance, Price, Prices, accelerator_of, training_instances
from sagemaker_dist.cli.split.cluster import ClusterFacts, cluster_of
from sagemaker_dist.errors import OptionError, raise_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Cluster of one instance type, with its price.

    Attributes:
        instance_type: Name of the type.
        num_hosts: Number of hosts.
        cluster: Ranks, links and devices.
        price: Price on demand of one host.
        spot: Price on spot instances of one host; None if unknown.
    """

    instance_type: str
    num_hosts: int
    cluster: ClusterFacts
    price: Price
    spot: Price | None


def candidates_of(types: Sequence[str], counts: Sequence[int], prices: Prices) -> list[Candidate]:
    """Return the clusters to compare, every type with every count.

    Args:
        types: Instance types; if empty, `default_types`.
        counts: Numbers of hosts.
        prices: Known prices.

    Raises:
        OptionError: A type is unknown, is not supported, has no GPUs or has no known price; all
            faults are reported.
    """
    names = list(dict.fromkeys(types)) or default_types(prices)
    raise_all(_faults(names, prices))
    return [
        Candidate(
            instance_type=name,
            num_hosts=count,
            cluster=cluster_of(name, num_hosts=count),
            price=prices.on_demand[name],
            spot=prices.spot.get(name),
        )
        for name in names
        for count in sorted(set(counts))
    ]


def default_types(prices: Prices) -> list[str]:
    """Return, for each model of GPU, the type with most of them that has a known price.

    Of types with as many GPUs, the one with the fastest network is taken, then the cheaper one.
    """
    best: dict[tuple[str | None, float | None], str] = {}
    for each in sorted(_comparable(), key=lambda one: _rank(one, prices)):
        if each.name in prices.on_demand:
            best[each.accelerator, each.accelerator_memory_gib] = each.name
    return sorted(best.values())


def types_without_price(prices: Prices) -> list[str]:
    """Return the types with GPUs of known speed that are not compared, as no price is known."""
    return sorted(each.name for each in _comparable() if each.name not in prices.on_demand)


def _comparable() -> Iterable[Instance]:
    every = training_instances().values()
    return [each for each in every if each.has_gpu and accelerator_of(each) is not None]


def _rank(instance: Instance, prices: Prices) -> tuple[int, float, float]:
    network = instance.network_sustained_gbps or instance.network_gbps or 0.0
    price = prices.on_demand.get(instance.name)
    return (instance.num_accelerators, network, -price.usd_per_hour if price else 0.0)


def _faults(names: Sequence[str], prices: Prices) -> Iterator[OptionError]:
    for name in names:
        try:
            cluster = cluster_of(name, num_hosts=1)
        except OptionError as error:
            yield error
            continue
        what = f"--instance-type is {name!r}"
        if cluster.device.flops_per_second is None:
            why = "no speed of its devices is known, so that no time can be predicted"
            hint = "Name a type with GPUs, such as ml.g5.12xlarge"
            yield OptionError(what, why, hint, about="instance_type", kind="unsupported")
        elif name not in prices.on_demand:
            yield OptionError(
                what,
                "its price is not known",
                "Run sagemaker-dist instances refresh, which reads the prices of AWS, or pass"
                " --prices with a file that has it",
                about="instance_type",
                kind="no_price",
            )
