# SPDX-License-Identifier: Apache-2.0
"""Division of a model into pipeline stages, on plain data and without any framework.

A framework's package (`smdist.modelparallel.torch`) records a model's forward pass as a `Graph`,
and measures the time and memory of its modules (`Costs`). From graph and costs, this package
computes the stages, the schedule of microbatches, and the times of a simulated step. The result is
a `Plan`.
"""
