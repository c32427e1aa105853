# SPDX-License-Identifier: Apache-2.0
"""Each line of a rank's output carries its name; nothing else about it changes."""

import pytest

from smdist.launch.relay import MAX_SEGMENT, Relay

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
