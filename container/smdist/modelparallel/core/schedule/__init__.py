# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules: pure generators of who does what in which order."""
