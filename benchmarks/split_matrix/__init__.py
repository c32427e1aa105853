# SPDX-License-Identifier: Apache-2.0
"""Matrix of models and uses that can be split; writes docs/models.md."""
