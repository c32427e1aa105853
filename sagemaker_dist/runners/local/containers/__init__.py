# SPDX-License-Identifier: Apache-2.0
"""Hosts that are containers of this machine's Docker engine."""
