# SPDX-License-Identifier: Apache-2.0
"""Layout of a training on a cluster: parallel degrees, shards, checkpointing and microbatches.

layer_model.py      model as a list of layers; transformer.py makes one from a configuration
machine_speed.py    cluster and the efficiency that programs reach; calibration.py reads a file
training_needs.py   batch, precision and options that the user has fixed
degrees.py          one layout
find_layout.py      search for the fastest layout, and for the fastest of each family
"""

from smdist.modelparallel.core.layout.degrees import Layout
from smdist.modelparallel.core.layout.find_layout import (
    LayoutSearch,
    find_fastest,
    find_layout,
    why_whole,
)
from smdist.modelparallel.core.layout.layer_model import Layer, LayerModel
from smdist.modelparallel.core.layout.layout_evaluator import LayoutEvaluator
from smdist.modelparallel.core.layout.machine_speed import Curve, Machine
from smdist.modelparallel.core.layout.prediction import (
    LayoutMisfit,
    MemoryParts,
    Prediction,
    TimeParts,
)
from smdist.modelparallel.core.layout.training_needs import PRECISIONS, Precision, TrainingNeeds
from smdist.modelparallel.core.layout.transformer import TransformerConfig, transformer

__all__ = [
    "PRECISIONS",
    "Curve",
    "Layer",
    "LayerModel",
    "Layout",
    "LayoutEvaluator",
    "LayoutMisfit",
    "LayoutSearch",
    "Machine",
    "MemoryParts",
    "Precision",
    "Prediction",
    "TimeParts",
    "TrainingNeeds",
    "TransformerConfig",
    "find_fastest",
    "find_layout",
    "transformer",
    "why_whole",
]
