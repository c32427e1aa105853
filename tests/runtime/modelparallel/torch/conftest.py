# SPDX-License-Identifier: Apache-2.0
"""One thread: ranks share few processors, and so does the process that they are compared with.

Seconds that are measured are disturbed less by what else runs on the machine.
"""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
