# SPDX-License-Identifier: Apache-2.0
"""Execution of the stages of a Keras model: functions, messages and the order of actions."""
