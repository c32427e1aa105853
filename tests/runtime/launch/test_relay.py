# SPDX-License-Identifier: Apache-2.0
"""Each line of a rank's output carries its name; nothing else about it changes."""

import pytest

from smdist.launch.output_prefix import MAX_SEGMENT, STARTING, Relay

N = b"[algo-2 rank 3] "


@pytest.mark.parametrize(
    ("chunks", "shown"),
    [
        ([b"a\nb\n"], N + b"a\n" + N + b"b\n"),
        ([b"a", b"b\n"], N + b"ab\n"),
        ([b"no end"], N + b"no end\n"),
        ([b""], b""),
        ([b"\n"], N + b"\n"),
        ([b" 10%\r 20%\r"], N + b" 10%\r" + N + b" 20%\r"),
        ([b"\r 10%", b"\r 20%", b"\n"], N + b" 10%\r" + N + b" 20%\n"),
        ([b"a\r\nb\r\n"], N + b"a\r\n" + N + b"b\r\n"),
        ([b"a\r", b"\nb\n"], N + b"a\r" + b"\n" + N + b"b\n"),
        ([b"\xff\xfe\n"], N + b"\xff\xfe\n"),
        (["é".encode()[:1], "é".encode()[1:] + b"\n"], N + "é".encode() + b"\n"),
    ],
)
def test_lines_are_named(chunks, shown):
    relay = Relay("algo-2 rank 3")

    assert shown == b"".join(map(relay.feed, chunks)) + relay.finish()


def test_line_without_end_is_cut():
    """A rank that never ends its line does not fill the memory."""
    relay = Relay("x")

    assert relay.feed(b"a" * (MAX_SEGMENT + 1)).endswith(b"a\n")
    assert b"" == relay.finish()


STARTS = (
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    b"I0000 00:00:1795337685.464837   22672 port.cc:153] oneDNN custom operations are on. You\n"
)
SAYS = (
    b"W0000 00:00:1795337685.464837   22672 a.cc:153] slow\n"
    b"E0000 00:00:1795337685.464837   22672 a.cc:153] wrong\n"
    b"WARNING: All log messages are here\n"
    b"I0000 is a part\n"
)


def test_what_tensorflow_logs_as_it_starts_is_left_out():
    """Nothing else is dropped: neither warnings nor the script's output."""
    relay = Relay("algo-2 rank 3", STARTING)
    shown = relay.feed(STARTS + SAYS[:20]) + relay.feed(SAYS[20:] + STARTS[:-1]) + relay.finish()

    assert b"".join(N + line for line in SAYS.splitlines(keepends=True)) == shown
    assert STARTS.splitlines()[0] in Relay("x").feed(STARTS)
