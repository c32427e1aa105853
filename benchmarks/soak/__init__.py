# SPDX-License-Identifier: Apache-2.0
"""Ranks that train, fail and start again for a long time, and whether anything of theirs grows."""
