# SPDX-License-Identifier: Apache-2.0
"""Plans for Keras models: costs of layers, and the search for the fastest plan."""
