# SPDX-License-Identifier: Apache-2.0
# BASH_ENV of the image: bash reads this before any script or `bash -c`.
#
# SageMaker's ModelTrainer (SDK v3) replaces the image's entry point by
# `/bin/bash -c "… sm_drivers/sm_train.sh"`. As process 1 of the container bash drops
# SIGTERM, so neither a stopped job nor a Spot interruption would reach the script. Only
# there bash makes way:
#
#   to `train`         where distributed= is ours. sm_train.sh would hand hyperparameters
#                      and names of channels through a shell, which runs what it can read
#                      in them and stops at what it cannot. `SMDIST_TAKE_OVER=off` runs
#                      sm_train.sh all the same, which ends in our launcher, too.
#   to `smdist-init`   otherwise: it starts the same command and passes signals on.
#
# Any value of SMDIST_INIT leaves bash as it is: `SMDIST_INIT=off` opts out of both.
case "$$:${SMDIST_INIT:-unset}:${BASH_EXECUTION_STRING:-}" in
  1:unset:*sm_drivers/sm_train.sh*)
    if command -v smdist-init > /dev/null; then
      unset BASH_ENV
      export SMDIST_INIT=on
      _smdist_asked=/opt/ml/input/data/sm_drivers/distributed.json
      if [ -z "${SMDIST_TAKE_OVER:-}" ] && [ -r "$_smdist_asked" ]; then
        case "$(< "$_smdist_asked")" in
          *'"sagemaker_dist_config"'*) exec smdist-init train ;;
        esac
      fi
      exec smdist-init /bin/bash -c "$BASH_EXECUTION_STRING" "$0" "$@"
    fi
    ;;
esac
