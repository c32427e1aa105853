# SPDX-License-Identifier: Apache-2.0
"""A model in float16 trains as one process does that keeps float32 master weights itself."""

import pytest
import torch
from half_training import SCALE, alone, furthest, made, start, train

STEPS = 3


def trained(rank, size, degree, options, arguments):
    start(degree, **options)
    tied, max_norm = arguments.get("tied", False), arguments.get("max_norm")
    model, optimizer = made(tied=tied)
    found = train(model, optimizer, STEPS, max_norm=max_norm)
    kinds = {p.dtype for p in model.parameters()}
    moments = {v.dtype for s in optimizer.state.values() for v in s.values() if v.dim()}
    return found, kinds, moments


@pytest.mark.parametrize(
    ("size", "degree", "options", "arguments"),
    [
        (1, 1, {}, {"max_norm": 0.5}),
        (2, 2, {}, {}),
        pytest.param(2, 1, {}, {}, marks=pytest.mark.slow),
        (2, 1, {"gradient_clipping": 0.5}, {}),
        pytest.param(4, 2, {"pipeline": "1f1b"}, {"max_norm": 0.5}, marks=pytest.mark.slow),
        (2, 2, {"bf16": True, "fp16": False}, {}),
    ],
)
def test_numbers_are_those_of_one_process(world, size, degree, options, arguments):
    """Bit for bit; the norm is summed over stages, so that it differs in the last digits."""
    dtype = torch.bfloat16 if options.get("bf16") else torch.float16
    scale = 1.0 if options.get("bf16") else SCALE
    max_norm = arguments.get("max_norm", options.get("gradient_clipping"))
    expected = alone(STEPS, dtype=dtype, scale=scale, max_norm=max_norm)

    for found, kinds, moments in world.run(trained, degree, options, arguments, size=size):
        assert ({dtype}, {torch.float32}) == (kinds, moments)
        assert expected.losses == pytest.approx(found.losses, rel=1e-4 if max_norm else 0)
        assert furthest(expected.state, found.state) <= (1e-4 if max_norm else 0)
        if "max_norm" in arguments:
            assert expected.norms == pytest.approx(found.norms, rel=1e-4)
        assert [False] * STEPS == found.skipped
