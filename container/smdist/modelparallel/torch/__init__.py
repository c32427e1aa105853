# SPDX-License-Identifier: Apache-2.0
"""PyTorch models split over several devices: `import smdist.modelparallel.torch as smp`."""
