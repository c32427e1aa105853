# SPDX-License-Identifier: Apache-2.0
"""Splits of tensors over ranks, and modules of which each rank computes a part."""

from smdist.modelparallel.torch.tensor_splits.custom_functions import follow_functions
from smdist.modelparallel.torch.tensor_splits.dropout_calls import DropoutCalls
from smdist.modelparallel.torch.tensor_splits.part_modules import PartValues
from smdist.modelparallel.torch.tensor_splits.peers import GroupPeers, Peers, without_messages
from smdist.modelparallel.torch.tensor_splits.region_entry import (
    RegionEntry,
    Role,
    splits_sequences,
)
from smdist.modelparallel.torch.tensor_splits.sequence_borders import SequenceSplit
from smdist.modelparallel.torch.tensor_splits.sequence_part import (
    SequencePart,
    own_slice,
    sliced_sequence,
    splitting_sequences,
    whole_sequences,
)
from smdist.modelparallel.torch.tensor_splits.split_dropout import (
    SplitDraw,
    is_dropout,
    turn_dropout,
)
from smdist.modelparallel.torch.tensor_splits.split_modules import turn
from smdist.modelparallel.torch.tensor_splits.tensor_split import (
    TensorSplit,
    mark,
    split_of,
    unmark,
    whole_shape_of,
)
from smdist.modelparallel.torch.tensor_splits.vocab_parallel_logits import (
    VocabParallelLogits,
    gathered_logits,
    loss_parallel,
    whole_logits,
)

__all__ = [
    "DropoutCalls",
    "GroupPeers",
    "PartValues",
    "Peers",
    "RegionEntry",
    "Role",
    "SequencePart",
    "SequenceSplit",
    "SplitDraw",
    "TensorSplit",
    "VocabParallelLogits",
    "gathered_logits",
    "is_dropout",
    "loss_parallel",
    "mark",
    "own_slice",
    "sliced_sequence",
    "split_of",
    "splits_sequences",
    "splitting_sequences",
    "turn",
    "turn_dropout",
    "unmark",
    "whole_logits",
    "whole_sequences",
    "whole_shape_of",
    "without_messages",
]

follow_functions()
