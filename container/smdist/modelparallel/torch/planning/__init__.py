# SPDX-License-Identifier: Apache-2.0
"""Planning of the split of a model over ranks: `smp.plan` and `smp.forecast`."""
