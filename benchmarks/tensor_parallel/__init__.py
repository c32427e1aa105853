# SPDX-License-Identifier: Apache-2.0
"""Layers that are split over two ranks of one host, beside torch's own tensor parallelism."""
