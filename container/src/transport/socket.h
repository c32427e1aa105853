// SPDX-License-Identifier: Apache-2.0
// The system's sockets: non-blocking, closed on exec, numeric addresses only.
#pragma once

#include <sys/socket.h>

#include <string>

#include "base/unique_fd.h"
#include "smdist/options.h"

namespace smdist {

// Throws UsageError if the host is not a numeric address.
struct Address {
  Address() = default;
  Address(const std::string& host, uint16_t port);

  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }

  sockaddr_storage storage{};
  socklen_t bytes = sizeof(sockaddr_storage);
};

Endpoint endpoint_of(const Address& address);
Endpoint local_endpoint(int fd);
std::string peer_text(int fd);  // "10.0.0.4:43512"

UniqueFd listen_on(const std::string& host);  // on a free port

// Begins to connect, from `host`. Throws SystemError; errors that take time show
// in connect_error(), once the socket is writable. For `arriving` see limit_arrivals().
UniqueFd begin_connect(const std::string& host, const Endpoint& to, size_t arriving);
int connect_error(int fd);  // 0: connected

// An invalid one if nobody waits. Throws SystemError.
UniqueFd accept_from(int listener);

// What a connection between ranks needs: no delay, and an end to silence.
void tune(int fd);

// How many bytes the peer may have on their way; 0: as many as the kernel lets it. For a
// socket that is not connected yet, or a listener: once the peer was promised more, both
// sides could drop each other's every packet for good.
void limit_arrivals(int fd, size_t bytes);

// The same for one that is connected: it gets more, never less.
void widen_arrivals(int fd, size_t bytes);

// The least that is good for a connection.
size_t few_segments(int fd);

}  // namespace smdist
