# SPDX-License-Identifier: Apache-2.0
"""GPUs are divided among the hosts of one machine."""

from error_fields import fields_raised
from hypothesis import given
from hypothesis import strategies as st

from sagemaker_dist.planning.local_job import divide_gpus


def test_neighbours_stay_together_and_what_is_over_stays_unused():
    assert (("0", "1"), ("2", "3"), ("4", "5")) == divide_gpus(list("01234567"), 3)


@given(num_gpus=st.integers(1, 64), num_hosts=st.integers(1, 64))
def test_every_host_gets_as_many_and_no_gpu_is_shared(num_gpus, num_hosts):
    gpus = [str(number) for number in range(num_gpus)]
    if num_gpus < num_hosts:
        refused = fields_raised(lambda: divide_gpus(gpus, num_hosts))
        assert [("instance_count", "missing_gpu")] == refused
        return
    shares = divide_gpus(gpus, num_hosts)
    given_out = [gpu for share in shares for gpu in share]

    assert {num_gpus // num_hosts} == {len(share) for share in shares}
    assert gpus[: len(given_out)] == given_out
    assert num_hosts > num_gpus - len(given_out)
