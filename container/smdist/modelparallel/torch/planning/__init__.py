# SPDX-License-Identifier: Apache-2.0
"""Planning: from a model and an example batch to a plan, `smp.plan`."""
