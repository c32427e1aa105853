// SPDX-License-Identifier: Apache-2.0
// Transfer of file descriptors between processes of a host, for shared memory.
#pragma once

#include <optional>
#include <string>

#include "base/unique_fd.h"

namespace smdist {

// Open an abstract Unix socket that listens. Such a socket has a name in the network namespace and
// no file, and can transfer file descriptors. Throws SystemError.
UniqueFd listen_unix(const std::string& name);
// Connect to an abstract Unix socket. Returns a closed descriptor if no process listens there.
UniqueFd connect_unix(const std::string& name);
bool is_unix_socket(int fd);

// Result of sending or receiving a file descriptor.
enum class FdTransfer { kDone, kBlocked, kFailed };
// Send, and receive, a file descriptor over a Unix socket. kBlocked: try again when the socket is
// ready.
FdTransfer send_fd(int socket, int fd);
FdTransfer receive_fd(int socket, UniqueFd* fd);

}  // namespace smdist
