# SPDX-License-Identifier: Apache-2.0
"""Package `horovod.common`: what is the same for all frameworks."""
