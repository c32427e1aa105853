# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a job find each other and make one engine; no framework is needed for it.

connect    every rank says who it is and where its engine listens
store      where they say it: torch's own store, or
tcp_store  the core's, for jobs without torch
"""
