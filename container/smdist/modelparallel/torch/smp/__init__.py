# SPDX-License-Identifier: Apache-2.0
"""Names of AWS's SMP v1 (`smp.*`), as its scripts call them."""
