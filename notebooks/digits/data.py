# SPDX-License-Identifier: Apache-2.0
"""Training data of the demo: scikit-learn's handwritten digits, as files of a channel."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def write_digits(folder: Path) -> Path:
    """Write train.npz (1,437 pictures) and test.npz (360) to a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    pictures = (digits.images / 16).astype(np.float32)[:, None]
    parts = train_test_split(
        pictures, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    for name, x, y in [("train", parts[0], parts[2]), ("test", parts[1], parts[3])]:
        np.savez(folder / f"{name}.npz", pictures=x, labels=y)
    return folder
