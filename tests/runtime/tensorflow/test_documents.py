# SPDX-License-Identifier: Apache-2.0
"""The scripts of docs/tensorflow.md run as they stand there."""

import os
import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "tensorflow.md"


def scripts():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [block for block in blocks if "init()" in block]


def run(rank, size, source, folder):
    os.environ["SM_CHECKPOINT_DIR"] = folder
    names = {"__name__": "__main__"}
    exec(compile(source, str(PAGE), "exec"), names)
    names["hvd" if "hvd" in names else "sdp"].shutdown()
    return [value.tobytes() for value in names["model"].get_weights()]


def test_scripts_train_alike_on_all_ranks(tf_world, tmp_path):
    """Weights have the same bits, also after going on from a checkpoint."""
    fit, kept, loop = scripts()
    found = [tf_world.run(run, source, str(tmp_path), size=2) for source in (fit, kept, kept, loop)]

    assert (tmp_path / "model.keras").exists()
    assert found[1] == found[2]  # nothing was left to do
    assert all(first == second for first, second in found)
