# SPDX-License-Identifier: Apache-2.0
"""Files of PyTorch's distributed checkpoints, with checksums and safe replacement.

`torch.distributed.checkpoint` can read these files. Files that PyTorch writes differ in four ways:

    names       Here, each file name begins with a number of the save. So files of two saves, or of
                two hosts that upload to one folder, never have the same name.
    .metadata   Here, a rename replaces this file after all values are on disk. Before the rename,
                the folder contains the old checkpoint, and after it the new one.
    N.metadata  Here, a copy of .metadata has the number of the save in its name. So an older save
                under the same tag stays complete until the new one is.
    checksums   Here, each value and each metadata file has a checksum, and loading verifies it.
                PyTorch does not verify the checksums inside the archives that it writes.
"""

from __future__ import annotations

import io
import os
import pickle
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from smdist.modelparallel.torch.checkpoint.atomic_files import (
    METADATA,
    SUFFIX,
    replace_file,
    sync_folder,
)
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.checkpoint_progress import CheckpointProgress
from smdist.modelparallel.torch.checkpoint.dcp_metadata import file_sizes
from smdist.modelparallel.torch.checkpoint.metadata_trailer import FORMAT, Trailer, with_trailer
from smdist.modelparallel.torch.checkpoint.pickle_cost import check_archive_cost
from smdist.modelparallel.torch.checkpoint.safe_content import unpack


class ShardWriter(StorageWriter):
    """Writer of one rank's values into one file, for `torch.distributed.checkpoint`.

    Args:
        folder: Existing folder of the checkpoint.
        save: Unique number of this save; all file names begin with this number.
        progress: Counter of the bytes that are written.

    Attributes:
        has_values: True once all values of this rank are on disk.
    """

    def __init__(self, folder: Path, save: str, progress: CheckpointProgress) -> None:
        self._folder, self._save, self._progress = folder, save, progress
        self.has_values = False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: PyTorch calls this to change the folder, but this writer has only one."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing; PyTorch calls this before the ranks plan what each of them writes."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return this rank's plan unchanged; PyTorch calls this before it writes."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans of all ranks, each with the name of the rank's file."""
        names = (f"{self._save}_{rank}_0{SUFFIX}" for rank in range(len(plans)))
        return [replace(plan, storage_data=name) for plan, name in zip(plans, names, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's values to its file, one after another, and flush the file to disk.

        Returns:
            The file, position and size of each value, in a future that is complete already.
        """
        results: list[WriteResult] = []
        if plan.items:
            with (self._folder / plan.storage_data).open("wb") as stream:
                for item in plan.items:
                    results.append(self._write(stream, item, planner, plan.storage_data))
                stream.flush()
                os.fsync(stream.fileno())
            sync_folder(self._folder)
        self.has_values = True
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _write(
        self, stream: IO[bytes], item: WriteItem, planner: SavePlanner, name: str
    ) -> WriteResult:
        data = planner.resolve_data(item)
        if item.type is not WriteItemType.BYTE_IO:
            assert isinstance(data, Tensor)
            data = _packed(data)
        assert isinstance(data, io.BytesIO)
        view, offset = data.getbuffer(), stream.tell()
        stream.write(view)
        self._progress.add(len(view))
        info = _StorageInfo(name, offset, len(view))
        info.crc = zlib.crc32(view)  # type: ignore[attr-defined]  # is pickled like all attributes
        return WriteResult(index=item.index, size_in_bytes=len(view), storage_data=info)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the metadata after all ranks have written their values, to complete the checkpoint.

        Args:
            metadata: Shapes and types of all values; their positions in files are added.
            results: Results of `write_data`, by rank.
        """
        metadata.version = CURRENT_DCP_VERSION
        metadata.storage_data = {each.index: each.storage_data for of in results for each in of}
        metadata.storage_meta = StorageMeta(str(self._folder), self._save, modules=[FORMAT])
        trailer = Trailer(self._save, file_sizes(metadata))
        data = with_trailer(pickle.dumps(metadata), trailer)
        for name in (f"{self._save}{METADATA}", METADATA):
            replace_file(self._folder / name, lambda stream: stream.write(data))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return True if the checkpoint id is a path."""
        return isinstance(checkpoint_id, str | Path)


def _packed(tensor: Tensor) -> io.BytesIO:
    """Return a tensor as bytes in the format of `torch.save`.

    If the tensor is a part of a larger storage, only this part is included.
    """
    tensor = tensor.detach().cpu()
    if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
        tensor = tensor.clone()
    stream = io.BytesIO()
    torch.save(tensor, stream)
    return stream


def _unpacked(data: bytes) -> Tensor | None:
    """Return the tensor that `_packed` has written; None if there is none."""
    try:
        check_archive_cost(io.BytesIO(data))
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:
        return None
    return found if isinstance(found, Tensor) else None


class ShardReader(StorageReader):
    """Reader of one rank's values, for `torch.distributed.checkpoint`.

    Args:
        folder: Folder of the checkpoint.
        metadata: Metadata of the checkpoint, which rank 0 has read.
        progress: Counter of the bytes that are read.
    """

    def __init__(self, folder: Path, metadata: Metadata, progress: CheckpointProgress) -> None:
        self._folder, self._metadata, self._progress = folder, metadata, progress

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: PyTorch calls this to change the folder, but this reader has only one."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002  PyTorch's
        """Return the metadata of the checkpoint: shape, type, file and position of each value."""
        return self._metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing; PyTorch calls this before the ranks plan what each of them reads."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return this rank's plan unchanged; PyTorch calls this before it reads."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans of all ranks unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the values that the plan lists; copy them into the tensors that `planner` provides.

        The plan may list a part of a value only.

        Returns:
            A future that is complete already.

        Raises:
            CheckpointError: A file is not on this host, or values are corrupt. The error lists all
                corrupt values.
        """
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self._info(item.storage_index).relative_path, []).append(item)
        corrupt: dict[str, list[str]] = {}
        for name, items in by_file.items():
            try:
                stream = (self._folder / name).open("rb")
            except FileNotFoundError:
                raise _missing_error(name, self._folder) from None
            with stream:
                values = [each for item in items for each in self._read(stream, item, planner)]
            if values:
                corrupt[name] = values
        if corrupt:
            raise _corrupt_error(corrupt)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, stream: IO[bytes], item: ReadItem, planner: LoadPlanner) -> Iterable[str]:
        """Read one value, or a part of it, into a tensor of the load planner.

        Args:
            stream: The open file that contains the value.
            item: Item of the load plan: the value, and the part of it to read.
            planner: Load planner, which has the tensor to fill.

        Yields:
            The name of the value if it is corrupt; otherwise nothing.
        """
        info, name = self._info(item.storage_index), item.storage_index.fqn
        if info.offset + info.length > os.fstat(stream.fileno()).st_size:
            yield name
            return
        stream.seek(info.offset)
        data = stream.read(info.length)
        self._progress.add(len(data))
        if len(data) < info.length or zlib.crc32(data) != getattr(info, "crc", zlib.crc32(data)):
            yield name
        elif item.type is LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(data))
        elif (stored := _unpacked(data)) is None:
            yield name
        else:
            ranges = zip(item.storage_offsets, item.lengths, strict=True)
            part = stored[tuple(slice(start, start + length) for start, length in ranges)]
            target = planner.resolve_tensor(item).detach()
            target.copy_(part)
            planner.commit_tensor(item, target)

    def _info(self, index: MetadataIndex) -> _StorageInfo:
        found = self._metadata.storage_data[index]
        assert isinstance(found, _StorageInfo)
        return found

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return True if the checkpoint id is a path."""
        return isinstance(checkpoint_id, str | Path)


class LoadInto(DefaultLoadPlanner):
    """Load planner for `torch.distributed.checkpoint` that reads values into existing tensors.

    Objects other than tensors are restored with any tensors inside them on the CPU.

    Args:
        allow_pickle: True restores objects of all classes, which can run code from the files.
    """

    def __init__(self, *, allow_pickle: bool) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._allow_pickle = allow_pickle

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Restore an object, and store it in the state dict into which values are loaded."""
        name = read_item.dest_index.fqn
        self.state_dict[name] = unpack(name, value, allow_pickle=self._allow_pickle)


def _missing_error(name: str, folder: Path) -> CheckpointError:
    return CheckpointError(
        f"the file {name} is not in {str(folder)!r}",
        "a rank on another host wrote it to its own disk",
        "Copy the folders of all hosts into one folder, as SageMaker does with S3 before a restart",
        about=name,
        kind="missing_file",
        files=(name,),
    )


def _corrupt_error(corrupt: Mapping[str, list[str]]) -> CheckpointError:
    """Return the error for corrupt values.

    Args:
        corrupt: Names of the values, by file.
    """
    names, files = [name for of in corrupt.values() for name in of], sorted(corrupt)
    shown = ", ".join(names[:8]) + f" and {len(names) - 8} more" * (len(names) > 8)
    return CheckpointError(
        f"the values of {shown} are corrupt",
        f"their checksums are wrong, in the files {', '.join(files[:4])}",
        "Copy the files again, or load an older tag",
        about=tuple(names),
        kind="corrupt",
        files=tuple(files),
    )
