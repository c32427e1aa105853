# SPDX-License-Identifier: Apache-2.0
"""Split of a model, without any framework: graph, costs, partition, schedules, simulator, plan.

A framework's package (`smdist.modelparallel.torch`) captures a model as a Graph and measures its
Costs. Every step from there to the Plan is arithmetic on plain data, in this package.
"""
