# SPDX-License-Identifier: Apache-2.0
"""Names of smdist.modelparallel.tensorflow for users."""
