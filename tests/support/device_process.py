# SPDX-License-Identifier: Apache-2.0
"""Runs tests of the test device, or of a GPU, in processes of their own.

A process has one accelerator, and PyTorch can't take it away again: the process that runs all
other tests must not load the device.
"""

import faulthandler
import functools
import importlib.util
import inspect
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fork_server import Child, ForkServer

_MODULES = (
    "pytest",
    "torch",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "accelerator",
    "test_device.host_group",
    "smdist.dataparallel.torch",
)
# No start has to measure, and a sum of some thousand elements has several chunks.
_TUNING = {
    "SMDIST_ONE_SHOT_BYTES": "4096",
    "SMDIST_SINGLE_OWNER_BYTES": "65536",
    "SMDIST_CHUNK_BYTES": "65536",
    "SMDIST_LANES": "2",
    "SMDIST_ARRIVING_BYTES": "229376",
}


class DeviceTestFailedError(AssertionError):
    """A function raised, or its process died or did not reply."""


class DeviceProcesses:
    """Forks a process for each call from one that has imported torch."""

    def __init__(self, *modules: str) -> None:
        """Start the process that forks; it imports further modules, too."""
        # CUDA is unusable in a child of a process that has started it; NVML counts GPUs without.
        environ = {"OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        self._server = ForkServer((*_MODULES, *modules), TORCH_CPP_LOG_LEVEL="ERROR", **environ)

    def run(self, function: Callable[..., Any], *args: Any, deadline: float = 60, **named: Any):
        """Call the function where the device is loaded, and return its result."""
        return self._answer(self._start(function, args, named), deadline)

    def run_ranks(
        self,
        function: Callable[..., Any],
        *args: Any,
        size: int,
        staging: dict[str, int] | None = None,
        deadline: float = 60,
        hosts: str = "",
        **environ: str,
    ) -> list[Any]:
        """Call function(rank, size, *args) on ranks with a group for the device's tensors.

        staging: arguments of make_backend() for a group of smdist. If it is None, the group is a
        HostGroup.
        hosts: A letter for each rank, such as "aabb", that names its emulated host; the ranks of a
        host have a GPU each, or the stand-in for NCCL.
        """
        answers = self.outcomes(
            function, *args, size=size, staging=staging, deadline=deadline, hosts=hosts, **environ
        )
        failed = [f"rank {rank}: {why}" for rank, (done, why) in enumerate(answers) if not done]
        if failed:
            raise DeviceTestFailedError("\n".join(failed))
        return [answer for _, answer in answers]

    def outcomes(
        self,
        function: Callable[..., Any],
        *args: Any,
        size: int,
        staging: dict[str, int] | None = None,
        deadline: float = 60,
        hosts: str = "",
        **environ: str,
    ) -> list[tuple[bool, Any]]:
        """Call as run_ranks() does; return (True, answer) or (False, traceback) for each rank."""
        # ranks may still use the store when they have replied
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            places = [
                (f"{folder}/store", rank, size, staging, hosts[rank : rank + 1], environ)
                for rank in range(size)
            ]
            ranks = [self._start(function, (*place[1:3], *args), {}, place) for place in places]
            return [self._outcome(rank, deadline) for rank in ranks]

    def exit_code(self, function: Callable[..., Any], *args: Any) -> int | None:
        """Call the function, and return how its process ended."""
        child = self._start(function, args, {})
        child.pipe.poll(60)
        child.pipe.close()
        return child.wait(10)

    def close(self) -> None:
        """End the server."""
        self._server.close()

    def _start(self, function, args, named, place=None) -> Child:
        child = self._server.start(_serve, 0)
        file = function.__globals__["__file__"]
        child.pipe.send((file, function.__name__, args, named, place))
        return child

    def _answer(self, child: Child, deadline: float):
        succeeded, answer = self._outcome(child, deadline)
        if not succeeded:
            raise DeviceTestFailedError(answer)
        return answer

    def _outcome(self, child: Child, deadline: float) -> tuple[bool, Any]:
        try:
            if child.pipe.poll(deadline):
                return pickle.loads(child.pipe.recv_bytes())
            child.abort()
            return False, f"no answer in {deadline} s; the stacks are in its output"
        except EOFError:
            return False, f"died with exit code {child.wait(5)}"
        finally:
            child.pipe.close()


def on_device(test: Callable[..., None]) -> Callable[..., None]:
    """Make a test run in a process of its own, with the device loaded.

    Its arguments must be parameters, not fixtures.
    """

    @functools.wraps(test)
    def in_process(device_processes, **parameters):
        device_processes.run(test, **parameters)

    _add_fixture(in_process, test)
    return in_process


def _add_fixture(wrapper: Callable[..., None], test: Callable[..., None]) -> None:
    signature = inspect.signature(test)
    fixture = inspect.Parameter("device_processes", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wrapper.__signature__ = signature.replace(parameters=[fixture, *signature.parameters.values()])


def _serve(pipe: Connection, _: int) -> None:
    faulthandler.enable(all_threads=True)
    file, name, args, named, place = pipe.recv()
    import accelerator
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        accelerator.load()
        if place is not None:
            _join(*place)
        function = getattr(_load(file), name)
        function = getattr(function, "__wrapped__", function)
        _reply(pipe, True, function(*args, **named))
    except BaseException:
        _reply(pipe, False, traceback.format_exc())
    if dist.is_initialized():
        dist.destroy_process_group()
    accelerator.shut_down()
    os._exit(0)


def _join(
    store: str,
    rank: int,
    size: int,
    staging: dict[str, int] | None,
    host: str,
    environ: dict[str, str],
) -> None:
    import accelerator
    import test_device
    import torch
    import torch.distributed as dist
    from test_device import host_communicators, host_group

    backend = host_group.BACKEND
    if staging is None:
        host_group.register()
    else:
        from smdist.dataparallel.torch import backend as smdist_backend

        if not accelerator.IS_GPU:
            register = smdist_backend._C
            register.register_stream_memory(test_device.NAME, test_device.stream_memory())
            if environ.get("TESTDEV_REGISTERS_MEMORY") != "0":
                address = test_device.host_registration()
                register.register_host_registration(test_device.NAME, address)
        smdist_backend._device_limits.update(staging)
        os.environ.update(_TUNING | environ)
        if host:
            os.environ["SMDIST_HOST_ID"] = host
            if accelerator.IS_GPU:
                torch.accelerator.set_device_index(rank % torch.accelerator.device_count())
            else:
                host_communicators.register(str(Path(store).parent))
        backend = f"cpu:smdist,{accelerator.NAME}:smdist"
    dist.init_process_group(backend, store=dist.FileStore(store, size), rank=rank, world_size=size)


def _reply(pipe: Connection, succeeded: bool, answer: Any) -> None:
    """Send tensors with their values: send() would send what this process, which ends, shares."""
    pipe.send_bytes(pickle.dumps((succeeded, answer)))


def _load(file: str) -> Any:
    name = f"device_test_{Path(file).stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
