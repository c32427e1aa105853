# SPDX-License-Identifier: Apache-2.0
"""One host's part of a job: `train` reads, prepares, starts the ranks and watches them.

    config ── request ── source ── environment ── hosts ── command ── supervise ── failure
    what is   what to    the       SM_*           who is   pure       one loop     one
    told      start      code                     there                            sentence

    train ── torchrun ──┬── rank guard ── python train.py
                        └── rank guard ── python train.py

    train ── starter ──── the same for ranks and servers of TensorFlow

The launcher and the guards talk over one Unix socket (`link`), so a torchrun
that hangs or dies changes neither how fast a rank hears SIGTERM nor what is
known about its end. No framework is imported here.
"""
