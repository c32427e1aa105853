# SPDX-License-Identifier: Apache-2.0
"""Rendezvous of a job's ranks: they find each other and connect one engine, without a framework.

connect    every rank publishes its name and its engine's address
store      the interface through which ranks publish: torch's own store, or
tcp_store  the core's own store, for jobs without torch
"""
