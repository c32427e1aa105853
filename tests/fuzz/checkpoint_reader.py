# SPDX-License-Identifier: Apache-2.0
"""Fuzz target of the metadata of a checkpoint."""

from __future__ import annotations

import contextlib
import pickle
import pickletools
from functools import cache

import torch
from byte_source import ByteSource
from reader_list import MEMORY, kept, target
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from smdist.modelparallel.torch.checkpoint import dcp_metadata
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.dcp_metadata import (
    file_sizes,
    read_metadata,
)

dcp_metadata.read_file = lambda path, _: path.read_bytes()  # the file is in memory
_FILE = MEMORY / ".metadata"


@cache
def _metadata(num_parts: int) -> bytes:
    """Return the metadata of a checkpoint with a record, and with a tensor if it has parts."""
    size = torch.Size([4, 2])
    parts = [
        dcp.ChunkStorageMetadata(torch.Size([2 * at, 0]), torch.Size([2, 2]))
        for at in range(num_parts)
    ]
    properties = dcp.TensorProperties(dtype=torch.bfloat16)
    places = {
        dcp.MetadataIndex("model.a", part.offsets, number): _StorageInfo(f"1_{number}_0", 0, 99)
        for number, part in enumerate(parts)
    }
    tensor = {"model.a": dcp.TensorStorageMetadata(properties, size, parts)} if parts else {}
    found = dcp.Metadata(
        {**tensor, "record": dcp.BytesStorageMetadata()},
        storage_data={**places, dcp.MetadataIndex("record"): _StorageInfo("1_0_0", 99, 7)},
        storage_meta=dcp.StorageMeta(checkpoint_id="a", save_id="1"),
        version="1.0.0",
    )
    return pickletools.optimize(pickle.dumps(found))  # a third of the operations has no effect


@target
def checkpoint_metadata(source: ByteSource) -> None:
    """The file that lists the values of a checkpoint, with a few bytes of it changed."""
    num_parts = source.pick((None, 2, 1, 1, 1, 0, 0, 0))  # a short file takes less time
    data = bytearray(b"" if num_parts is None else _metadata(num_parts))
    for _ in range(source.below(4)):
        at = int.from_bytes(source.bytes(2), "little") % (len(data) + 1)
        data[at : at + source.below(8)] = source.bytes(source.below(8))
    kept(_FILE, bytes(data + source.rest()))
    with contextlib.suppress(CheckpointError):
        found = read_metadata(MEMORY)
        assert all(size >= 0 for size in file_sizes(found).values())
