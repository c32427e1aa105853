# SPDX-License-Identifier: Apache-2.0
"""Hosts of a local job as containers of this machine's Docker engine."""
