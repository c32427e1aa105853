# SPDX-License-Identifier: Apache-2.0
"""Ten models on two, three and four stages compute what they compute whole.

`make split-matrix` tries more: docs/models.md has the table.
"""

import pytest
import torch
import zoo

from smdist.modelparallel.torch.verification.verify import verify

TOLERANCE = 1e-6


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("name", zoo.TEN)
def test_a_split_model_has_the_gradients_of_the_whole(name, stages):
    """Gradients are compared with the model's own loss, in train mode with dropout."""
    specimen = zoo.tiny(name, dropout=0.1)
    found = verify(specimen.model, specimen.batch, stages=stages, loss=loss_of)

    assert found.relative_error <= TOLERANCE
    assert found.output_error <= TOLERANCE
    assert stages == len(found.stages)
    assert all(found.stages)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5", "mixtral"])
def test_padding_is_seen_by_every_stage(name):
    """A batch whose rows have different lengths."""
    specimen = zoo.tiny(name)
    zoo.pad(specimen.batch)
    found = verify(specimen.model, specimen.batch, stages=3)

    assert found.relative_error <= TOLERANCE
    assert found.output_error <= TOLERANCE


def loss_of(output):
    """The model's, or the mean square."""
    loss = output.get("loss") if isinstance(output, dict) else None
    return output.square().mean() if isinstance(output, torch.Tensor) else loss
