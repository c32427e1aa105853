# SPDX-License-Identifier: Apache-2.0
"""Conversion of answers of `ec2.describe_instance_types` to objects of class `Instance`.

This module itself does not call EC2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sagemaker_dist.catalog.instances import Instance

_MIB_PER_GIB: Final = 1024
_BANDWIDTH: Final = re.compile(r"(?P<burst>Up to )?((?P<cards>\d+)x )?(?P<gbps>[\d.]+) Gigabit")


def instance_of(described: Mapping[str, Any], source: str) -> Instance:
    """Return the Instance for one element of InstanceTypes in EC2's answer.

    Args:
        described: Element of InstanceTypes, a dict.
        source: Source and date of the answer, which becomes the source of the Instance.

    The name of the Instance is EC2's name with the prefix "ml.", such as "ml.p4d.24xlarge".
    """
    best, sustained = _network(described.get("NetworkInfo", {}))
    return Instance(
        name=f"ml.{described['InstanceType']}",
        **_accelerators(described),
        num_vcpus=described.get("VCpuInfo", {}).get("DefaultVCpus"),
        memory_gib=_gib(described),
        network_gbps=best,
        network_sustained_gbps=sustained,
        num_efa=_num_efa(described.get("NetworkInfo", {})),
        architecture=_architecture(described),
        sources=(source,),
    )


def _accelerators(described: Mapping[str, Any]) -> dict[str, Any]:
    if "GpuInfo" in described:
        return {"accelerator_kind": "gpu", **_devices(described["GpuInfo"]["Gpus"])}
    if "NeuronInfo" in described:
        devices = described["NeuronInfo"]["NeuronDevices"]
        cores = sum(each["Count"] * each["CoreInfo"]["Count"] for each in devices)
        return {"accelerator_kind": "neuron", **_devices(devices), "num_neuron_cores": cores}
    return {}


def _devices(devices: list[dict[str, Any]]) -> dict[str, Any]:
    first, *_ = devices  # an instance type has accelerators of one model only
    return {
        "accelerator": first["Name"],
        "num_accelerators": sum(each["Count"] for each in devices),
        "accelerator_memory_gib": _gib(first),
    }


def _gib(holder: Mapping[str, Any]) -> float | None:
    size_mib = holder.get("MemoryInfo", {}).get("SizeInMiB")
    return None if size_mib is None else round(size_mib / _MIB_PER_GIB, 1)


def _network(network: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the best and the sustained bandwidth of a host in Gbit/s, each None if unknown.

    EC2 states a summary in NetworkPerformance, such as "4x 100 Gigabit", and figures for each
    network card. The summary is preferred, because the sum over the cards is four times the host's
    bandwidth on g6e, and half of EFA's bandwidth on p6-b200. The sum is used only if the summary
    has no number, such as "High".
    """
    headline = _BANDWIDTH.fullmatch(network.get("NetworkPerformance", ""))
    sustained = _sum_over_cards(network, "BaselineBandwidthInGbps")
    if headline is None:
        return _sum_over_cards(network, "PeakBandwidthInGbps"), sustained
    best = int(headline["cards"] or 1) * float(headline["gbps"])
    return best, sustained if headline["burst"] else best


def _sum_over_cards(network: Mapping[str, Any], figure: str) -> float | None:
    figures = [card.get(figure) for card in network.get("NetworkCards", [])]
    return None if None in figures or not figures else float(sum(figures))


def _num_efa(network: Mapping[str, Any]) -> int | None:
    if network.get("EfaSupported") is False:
        return 0
    interfaces: int | None = network.get("EfaInfo", {}).get("MaximumEfaInterfaces")
    return interfaces


def _architecture(described: Mapping[str, Any]) -> Any:
    supported = described.get("ProcessorInfo", {}).get("SupportedArchitectures", [])
    return next((each for each in ("x86_64", "arm64") if each in supported), None)
