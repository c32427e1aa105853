# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs: the launchers of the hosts that are left agree on a smaller world.

Import the modules of this package, not the package.
"""
