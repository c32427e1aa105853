# SPDX-License-Identifier: Apache-2.0
"""Model of the engine's protocol as small state machines, and an explorer of all their states.

    explorer        every order in which actions can happen
    reducing        sums: READY, DATA into slots, GRANT, SUM
    point_to_point  send and receive, also from any source
    disagreeing     calls about which ranks disagree, which end alone: READY, MISMATCH

Each machine reads like the protocol. The model leaves out bytes, deadlines and faults, which
the C++ handles, too.
"""
