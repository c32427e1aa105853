# SPDX-License-Identifier: Apache-2.0
"""Units that are tried on made-up numbers leave no trace of it."""

import zoo

from smdist.modelparallel.torch.capture import capture


def test_what_a_trial_draws_is_not_counted():
    """Attention with dropout draws once in each unit, however often it was tried."""
    specimen = zoo.tiny("mixtral", dropout=0.1)
    calls = [call for call in capture(specimen.model, specimen.batch).program.calls if call.is_unit]
    tried = [call.rng for call in calls if call.is_probed]

    assert [(0, 1), (1, 1), (2, 1), (3, 1)] == [(each.first, each.count) for each in tried]
