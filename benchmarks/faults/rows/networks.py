# SPDX-License-Identifier: Apache-2.0
"""Rows: links, partitions, connections that are reset, strangers, clocks."""

from __future__ import annotations

from benchmarks.faults.actions import (
    VICTIM,
    clock_jumped,
    connections_rejected,
    connections_reset,
    partitioned,
    unplugged,
    visited_by_strangers,
)
from benchmarks.faults.clock_library import with_movable_clock
from benchmarks.faults.fault_row import (
    BOTH,
    NETWORK_SECONDS,
    SILENCE_SECONDS,
    TORCH,
    Expected,
    Row,
)

_LOST = Expected(within=NETWORK_SECONDS, kinds=("lost",), culprits=(VICTIM,))
# The host hears nobody, and may be the first to report that another one is silent.
_LOST_FOR_ANY = Expected(within=NETWORK_SECONDS, kinds=("lost",))
_SAFE = Expected(within=None, survives=True, lost="nothing; sums wait for the network")
_UNDISTURBED = Expected(within=None, survives=True, lost="nothing")
_VANISHES = "tests/runtime/dataparallel/test_fault_rows.py::test_row_on_three_hosts"
_WAYS = {"both": "both ways", "from": "one way, from the host", "to": "one way, to the host"}


def _blip(seconds: float, ways: str, *, both: bool = False) -> Row:
    """Return the row of an interruption that the default of silence_seconds allows."""
    return Row(
        name=f"blip of {seconds:g} s, {_WAYS[ways]}, silence_seconds of 60",
        action=partitioned(seconds, ways),
        environ={"SMDIST_SILENCE_SECONDS": "60"},
        expected=_SAFE,
        test="tests/runtime/dataparallel/test_blips.py::test_interruptions_below_the_default_end_nothing",
        frameworks=BOTH if both else TORCH,
        stop_after=seconds / 2 + 5.0,  # until TCP tries again
        deadline=180.0,
    )


def _partition(seconds: float | None, ways: str, *, both: bool = False) -> Row:
    is_short = seconds is not None and seconds < SILENCE_SECONDS
    length = "for good" if seconds is None else f"of {seconds:g} s"
    return Row(
        name=f"partition {length}, {_WAYS[ways]}",
        action=partitioned(seconds, ways),
        expected=_SAFE if is_short else _LOST_FOR_ANY if ways == "to" else _LOST,
        test="tests/runtime/dataparallel/test_fault_rows.py::test_row_on_three_hosts"
        if is_short
        else _VANISHES,
        frameworks=BOTH if both else TORCH,
        stop_after=15.0,  # TCP may wait as long as the partition took before it tries again
        deadline=120.0,
    )


ROWS = (
    Row(
        name="link of a host down",
        action=unplugged(),
        expected=_LOST,
        test=_VANISHES,
        frameworks=BOTH,
    ),
    *(_partition(5, ways, both=ways == "both") for ways in _WAYS),
    *(_blip(seconds, ways) for seconds in (15, 40) for ways in ("from", "to")),
    *(_blip(seconds, "both", both=True) for seconds in (15, 40)),
    *(_partition(15, ways, both=ways == "both") for ways in _WAYS),
    *(_partition(40, ways) for ways in _WAYS),
    *(_partition(None, ways) for ways in _WAYS),
    Row(
        name="all connections of a host reset",
        action=connections_reset(),
        expected=_UNDISTURBED,
        test="tests/native/lanes_test.cc::a_lane_whose_connection_ends_goes_on_over_another_one",
        frameworks=BOTH,
    ),
    Row(
        name="firewall resets connections between two hosts",
        action=connections_rejected(),
        expected=Expected(within=NETWORK_SECONDS, kinds=("lost",), culprits=(VICTIM, 1)),
        test="tests/native/resuming_test.cc::a_crash_is_no_interruption",
    ),
    Row(
        name="rank shuts its connections down",
        script={"fault": "shutdown"},
        expected=_UNDISTURBED,
        test="tests/native/lanes_test.cc::a_lane_whose_connection_ends_goes_on_over_another_one",
    ),
    Row(
        name="port scanner: random bytes to every port",
        action=visited_by_strangers(bytes(range(256)) * 16, 20),
        expected=_UNDISTURBED,
        test="tests/native/transport_test.cc::strangers_are_dropped_and_the_job_goes_on",
        frameworks=BOTH,
    ),
    Row(
        name="strangers who begin as ranks do",
        action=visited_by_strangers(b"SMD1" + bytes(range(200)), 20),
        expected=_UNDISTURBED,
        test="tests/integration/test_strangers.py::test_strangers_are_dropped_and_the_job_goes_on",
    ),
    Row(
        name="100 strangers who say nothing",
        action=visited_by_strangers(b"", 100),
        expected=_UNDISTURBED,
        test="tests/native/transport_test.cc::many_silent_strangers_do_not_keep_ranks_out",
    ),
    *(
        Row(
            name=f"wall clock jumps by {seconds:+,} s",
            prepare=with_movable_clock,
            action=clock_jumped(seconds),
            expected=_UNDISTURBED,
            test="tests/runtime/dataparallel/test_fault_rows.py::test_row_on_three_hosts",
        )
        for seconds in (86_400, -86_400)
    ),
)
