# SPDX-License-Identifier: Apache-2.0
"""Which models train on which pipelines, as in one process; writes docs/pipelines.md."""
