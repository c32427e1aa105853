# SPDX-License-Identifier: Apache-2.0
"""One thread: what else runs on the machine disturbs seconds less."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
