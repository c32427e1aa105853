# SPDX-License-Identifier: Apache-2.0
"""The compiled file: what it needs of TensorFlow, and whom it gets on with."""

import importlib.machinery
import importlib.util
import subprocess
import sys

import pytest

TOGETHER = """
from concurrent.futures import ThreadPoolExecutor
import tensorflow, torch
from smdist.dataparallel.tensorflow import op_library
from smdist.dataparallel.torch import _C as of_torch
of_tensorflow = op_library.compiled()
assert of_torch.Engine is not of_tensorflow.Engine
hosts = [0, 1]
for compiled in (of_torch, of_tensorflow):
    engines = [
        compiled.Engine(
            rank, 2, "127.0.0.1", [], hosts, b"", bytes(16), 0, None, None, 10.0, "mac", True
        )
        for rank in hosts
    ]
    for engine in engines:
        engine.join([each.endpoint() for each in engines])
    with ThreadPoolExecutor(2) as pool:  # TLS, beside the BoringSSL of TensorFlow
        fixed = compiled.Fixed()
        found = pool.map(lambda rank: engines[rank].probe(rank, hosts, fixed, 20.0), hosts)
        assert all(each.bandwidth > 0 for each in found)
    for engine in engines:
        engine.shutdown()
    engine = compiled.Engine(0, 1, "127.0.0.1", [], [], b"", bytes(16), 0, None, None, 10.0)
    engine.join([engine.endpoint()])
    engine.add_group(0, [0])
    engine.shutdown()
"""


@pytest.fixture
def binary():
    """Where the compiled file lies; found without an import, which would load TensorFlow here."""
    package = importlib.util.find_spec("smdist.dataparallel")
    for folder in package.submodule_search_locations:
        finder = importlib.machinery.FileFinder(
            f"{folder}/tensorflow",
            (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        )
        if found := finder.find_spec("_C"):
            return found.origin
    pytest.fail("smdist.dataparallel.tensorflow._C is not built")


def test_it_needs_the_c_api_only(binary):
    """Of TensorFlow it takes TF_ functions, and no C++ symbol: one file serves many minors."""
    listing = _said_by("nm", "-D", "--undefined-only", binary)
    names = [line.split()[-1] for line in listing.splitlines()]
    of_tensorflow = [name for name in names if name.startswith("TF_")]
    cpp = [name for name in names if "tensorflow" in name or "3tsl" in name or "4absl" in name]

    assert "TF_RegisterKernelBuilder" in of_tensorflow
    assert [] == cpp


def test_it_knows_no_place_to_look_in(binary):
    """It takes the TensorFlow that was imported, wherever that lies."""
    header = _said_by("readelf", "-d", binary)

    assert "libtensorflow_framework.so.2" in header
    assert "RPATH" not in header
    assert "RUNPATH" not in header


@pytest.mark.slow
def test_it_shares_a_process_with_the_one_for_torch():
    """Each module has engines of its own."""
    pytest.importorskip("torch")

    assert "" == _said_by(sys.executable, "-c", TOGETHER)


def _said_by(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
