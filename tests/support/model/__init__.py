# SPDX-License-Identifier: Apache-2.0
"""The engine's protocol as small state machines, and an explorer that walks all of their states.

    explorer        every order in which things can happen
    reducing        sums: READY, DATA into slots, GRANT, SUM
    point_to_point  send and receive, also from any source

Each machine reads like the protocol. What the C++ does beside it, bytes and
deadlines and faults, is not here.
"""
