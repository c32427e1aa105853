# SPDX-License-Identifier: Apache-2.0
"""Matrix of models and pipelines that train as one process does; writes docs/pipelines.md."""
