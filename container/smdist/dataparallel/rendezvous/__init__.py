# SPDX-License-Identifier: Apache-2.0
"""Rendezvous of a job's ranks: they find each other and connect their engines.

connect    publishes each rank's name and its engine's address, and connects the engines
store      interface of the key-value store through which ranks publish
tcp_store  such a store over TCP, for jobs without torch; jobs with torch use torch's store
"""
