# SPDX-License-Identifier: Apache-2.0
"""Objects as messages: how they are written (`letter`), and how they travel (`post`)."""
