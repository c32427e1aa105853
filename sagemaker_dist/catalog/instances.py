# SPDX-License-Identifier: Apache-2.0
"""What the instance types of SageMaker training are.

The table ships with the package, so that a misspelt type is found without a
network; its source and date stand in `instance_types.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

LOCAL_PROCESS: Final = "local_process"  # this machine, plain processes: ours
LOCAL: Final = frozenset({"local", "local_gpu"})  # this machine, Docker: SageMaker's SDK

_NEURON: Final = "Trainium"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One training instance type.

    Attributes:
        name: As in CreateTrainingJob, such as "ml.p4d.24xlarge".
        accelerator: What it accelerates with, such as "A100", or None.
        num_accelerators: How many of them.
    """

    name: str
    accelerator: str | None = None
    num_accelerators: int = 0

    @property
    def has_gpu(self) -> bool:
        """Whether its accelerators are GPUs."""
        return self.accelerator is not None and not self.accelerator.startswith(_NEURON)


@cache
def training_instances() -> Mapping[str, Instance]:
    """Every known training instance type by its name."""
    table = json.loads(files(__package__).joinpath("instance_types.json").read_text("utf-8"))
    return MappingProxyType(
        {
            name: Instance(
                name=name,
                accelerator=facts.get("accelerator"),
                num_accelerators=facts.get("count", 0),
            )
            for name, facts in table["types"].items()
        }
    )
