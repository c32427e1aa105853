# SPDX-License-Identifier: Apache-2.0
"""The scripts of docs/tensorflow.md run as they stand there."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "tensorflow.md"


def scripts():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [block for block in blocks if "init()" in block]


def run(rank, size, source):
    names = {"__name__": "__main__"}
    exec(compile(source, str(PAGE), "exec"), names)
    names["hvd" if "hvd" in names else "sdp"].shutdown()
    return [value.tobytes() for value in names["model"].get_weights()]


def test_scripts_train_alike_on_all_ranks(tf_world):
    """Weights have the same bits, in `fit` and in a loop."""
    found = [tf_world.run(run, source, size=2) for source in scripts()]

    assert 2 == len(found)
    assert all(first == second for first, second in found)
