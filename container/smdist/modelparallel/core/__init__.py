# SPDX-License-Identifier: Apache-2.0
"""Division of a model into pipeline stages, on plain data and without any framework.

A framework's package (`smdist.modelparallel.torch`) captures a model as a Graph and measures its
Costs. This package computes the rest from them: the stages, the schedule, a simulated step, and the
Plan.
"""
