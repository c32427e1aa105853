# SPDX-License-Identifier: Apache-2.0
"""Faults of hosts, processes, networks, disks and scripts, and what ranks report about each."""
