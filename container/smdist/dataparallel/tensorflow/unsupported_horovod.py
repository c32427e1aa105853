# SPDX-License-Identifier: Apache-2.0
"""Names of Horovod that smdist does not have, with the reason and a replacement for each."""

from __future__ import annotations

import sys
from difflib import get_close_matches

# pairs (why, hint)
_TRACES = "smdist writes no traces; TensorFlow's profiler does"
_INSTEAD = {
    "elastic": (
        "ranks form a new group in another way than Horovod's",
        "Use smdist.elastic: run(train, KerasState(model))",
    ),
    "join": (
        "all ranks must call every collective, and so need the same number of batches",
        "Give all ranks the same number of batches, with steps_per_epoch or dataset.take()",
    ),
    "start_timeline": (_TRACES, "Use tf.profiler.experimental.start()"),
    "stop_timeline": (_TRACES, "Use tf.profiler.experimental.stop()"),
}


def no_such_name(module: str, name: str) -> AttributeError:
    """Return the AttributeError for a name that the module does not have.

    For an unsupported name of Horovod, the error contains the reason and a replacement. For any
    other name, the error contains the most similar name of the module, if there is one.
    """
    what = f"module {module!r} has no attribute {name!r}"
    if name in _INSTEAD:
        why, hint = _INSTEAD[name]
        return AttributeError(f"{what}: {why}. {hint}.")
    near = get_close_matches(name, getattr(sys.modules.get(module), "__all__", ()), n=1)
    return AttributeError(f"{what}. Did you mean {near[0]!r}?" if near else what)
