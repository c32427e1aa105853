# SPDX-License-Identifier: Apache-2.0
"""Training images: built, looked at and pushed; and the Docker engine they live in."""
