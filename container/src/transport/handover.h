// SPDX-License-Identifier: Apache-2.0
// How a rank hands its memory to another on the same host.
#pragma once

#include <optional>
#include <string>

#include "base/unique_fd.h"

namespace smdist {

// An abstract Unix socket: it has a name and no file, in a network namespace, and
// it can carry file descriptors.
UniqueFd listen_locally(const std::string& name);   // throws SystemError
UniqueFd connect_locally(const std::string& name);  // an invalid one if nobody is there
bool is_local(int fd);

enum class Handover { kDone, kBlocked, kFailed };
Handover hand_over(int socket, int fd);
Handover take_over(int socket, UniqueFd* fd);

}  // namespace smdist
