# SPDX-License-Identifier: Apache-2.0
"""The README shows errors as they are."""

from pathlib import Path

import pytest

from sagemaker_dist import OptionErrors, PyTorch

README = Path(__file__).parents[3] / "README.md"


def test_readme_shows_the_real_error(tmp_path):
    """Two faults of one call, word for word."""
    (tmp_path / "train.py").touch()
    with pytest.raises(OptionErrors) as caught:
        PyTorch(
            entry_point="train.py",
            source_dir=str(tmp_path),
            instance_type="local_procces",
            instance_count=2,
            distribution={"smdit": {}},
        )

    assert f"OptionErrors: {caught.value}\n" in README.read_text()
