# SPDX-License-Identifier: Apache-2.0
"""Messages between ranks, and reductions in a group of them."""

import numpy as np
import pytest


def exchange(rank, size):
    """Send two tensors in one order and receive them in the other; reduce in a group."""
    import tensorflow as tf
    from tf_ranks import joined

    from smdist.dataparallel.tensorflow import basics, op_library

    with joined():
        other = 1 - rank
        sends = [
            op_library.start_send(tf.fill([2, tag], float(rank)), other, tag) for tag in (1, 2)
        ]
        found = []
        for tag in (2, 1):
            handle = op_library.start_receive([2, tag], tf.float32, other, tag)
            found.append(op_library.wait_move(handle, tf.float32, [2, tag]).numpy())
        for handle in sends:
            op_library.wait_send(handle, tf.float32)
        basics.engine().add_group(7, [0, 1])
        value = [tf.constant([1.0 + rank])]
        total = op_library.wait(op_library.start(value, "sum", 7), value)[0].numpy()
    return found, total


def test_messages_are_found_by_their_tags(tf_world):
    """The order of receives may differ from that of sends, and groups reduce by themselves."""
    for rank, (found, total) in enumerate(tf_world.run(exchange, size=2)):
        for tag, value in zip((2, 1), found, strict=True):
            np.testing.assert_array_equal(value, np.full((2, tag), 1.0 - rank))

        assert 3.0 == total


def wrong(rank, size):
    """Return the text of the error for a rank that does not exist."""
    import tensorflow as tf
    from tf_ranks import joined

    from smdist.dataparallel.tensorflow import op_library

    with joined(), pytest.raises(tf.errors.InvalidArgumentError) as refused:
        op_library.start_send(tf.zeros([1]), size, 1)
    return str(refused.value)


def test_a_rank_that_does_not_exist_is_refused(tf_world):
    assert all("the ranks are 0 to 1" in text for text in tf_world.run(wrong, size=2))
