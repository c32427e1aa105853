# SPDX-License-Identifier: Apache-2.0
"""Which models can be split, in which use; writes docs/models.md."""
