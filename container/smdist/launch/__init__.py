# SPDX-License-Identifier: Apache-2.0
"""Launcher of one host: `train` prepares the host, starts its ranks and watches them.

Its steps, in order:

    config            reads SageMaker's files and the environment
    launch_request    decides from distribution= what this host must start
    user_code         downloads the script and installs its requirements
    host_resolution   waits until each host's name has an address
    environment       makes the variables SM_* and SMDIST_* of the ranks
    launch_command    makes the command line
    supervise         starts the command and watches the ranks

Its processes:

    train ── torchrun ──┬── rank guard ── python train.py
                        └── rank guard ── python train.py

    train ── task_starter ──── ranks and servers of TensorFlow, each under a rank guard

The launcher and the rank guards exchange messages over one Unix socket (`guard_protocol`). A
torchrun that hangs or dies therefore cannot delay SIGTERM or hide how a rank ended. One sentence
about the first failure is written to `<base>/output/failure`, which SageMaker shows
(`failure_file`). No module here imports a framework.
"""
