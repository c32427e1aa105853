# SPDX-License-Identifier: Apache-2.0
"""Launcher of one host: `train` prepares the host, starts its ranks and watches them.

    config ─ launch_request ─ user_code ─ environment ─ host_resolution ─ launch_command ─ supervise
    read     what to start    fetched     SM_*          addresses         pure             one loop

    train ── torchrun ──┬── rank guard ── python train.py
                        └── rank guard ── python train.py

    train ── task_starter ──── ranks and servers of TensorFlow, each under a rank guard

The launcher and the rank guards talk over one Unix socket (`guard_protocol`). So a torchrun
that hangs or dies neither delays SIGTERM nor hides how a rank ended. The first failure becomes
one sentence (`failure_file`). No module here imports a framework.
"""
