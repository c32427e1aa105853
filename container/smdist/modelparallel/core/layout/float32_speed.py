# SPDX-License-Identifier: Apache-2.0
"""Speed of float32 products of matrices, beside the 16-bit peak for which times are computed.

torch multiplies float32 without tensor cores unless the script allows TF32
(`torch.set_float32_matmul_precision("high")`) or runs under autocast. So a model in float32 may
take longer than a prediction from the 16-bit peak, which is then the lower end.
"""

from __future__ import annotations

from typing import Final

from smdist.modelparallel.core.cluster import Device

# FLOP/s of dense products in (float32, TF32): "TFLOPS comparison table" in stas00/ml-engineering,
# compute/accelerator/README.md, read 2026-11-27.
_SOURCE: Final = "stas00/ml-engineering 00744732, TFLOPS comparison table, read 2026-11-27"
_PEAKS: Final = {
    "A100": (19.5e12, 156e12),
    "H100": (67e12, 494.5e12),
    "H200": (67e12, 494.5e12),
    "L40S": (91.6e12, 183e12),
}
_ELSEWHERE: Final = 8.0  # assumed; the GPUs of the table have 4 to 16
_GPUS: Final = "NVIDIA"


def float32_slowdown(device: Device) -> float:
    """Return how many times longer products take in float32 than at the device's peak, at most.

    The result is 1 for devices other than GPUs, and for a peak that is already float32's.

    Args:
        device: Device with its peak speed.
    """
    if not device.name.startswith(_GPUS) or device.flops_per_second is None:
        return 1.0
    known = _known(device)
    return _ELSEWHERE if known is None else max(1.0, device.flops_per_second / known[0])


def float32_assumption(device: Device) -> str:
    """Return the sentence on the speed of a float32 model on a GPU.

    Args:
        device: Device with its peak speed.
    """
    known = _known(device)
    start = (
        "The model is in float32, and its products are timed at the 16-bit peak, as under autocast."
        f" Without autocast, {device.name}"
    )
    if known is None:
        return (
            f"{start} is slower, by assumption up to {_ELSEWHERE:g} times, with which the range's"
            " upper end is computed."
        )
    assert device.flops_per_second is not None
    plain, tensor = (device.flops_per_second / speed for speed in known)
    return (
        f"{start} takes {tensor:.1f} times as long with TF32 and {plain:.1f} times without, with"
        f" which the range's upper end is computed ({_SOURCE})."
    )


def _known(device: Device) -> tuple[float, float] | None:
    return next((speeds for name, speeds in _PEAKS.items() if name in device.name), None)
