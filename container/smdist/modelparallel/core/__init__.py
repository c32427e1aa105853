# SPDX-License-Identifier: Apache-2.0
"""What a split is, without any framework: graph, costs, partition, schedules, simulator, plan.

A framework's room (`smdist.modelparallel.torch`) records a model as a Graph and measures its
Costs. Everything from there to the Plan is arithmetic on plain data, here.
"""
