# SPDX-License-Identifier: Apache-2.0
"""How evenly ways of cutting a model load its stages; see README.md."""
