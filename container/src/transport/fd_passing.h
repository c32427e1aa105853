// SPDX-License-Identifier: Apache-2.0
// Transfer of file descriptors between processes of a host, for shared memory.
#pragma once

#include <optional>
#include <string>

#include "base/unique_fd.h"

namespace smdist {

// Abstract Unix sockets: they have a name in a network namespace and no file, and can carry file
// descriptors.
UniqueFd listen_unix(const std::string& name);   // throws SystemError
UniqueFd connect_unix(const std::string& name);  // closed if no process listens
bool is_unix_socket(int fd);

enum class FdTransfer { kDone, kBlocked, kFailed };
FdTransfer send_fd(int socket, int fd);
FdTransfer receive_fd(int socket, UniqueFd* fd);

}  // namespace smdist
