// SPDX-License-Identifier: Apache-2.0
// TCP sockets: non-blocking, closed on exec, numeric addresses only.
#pragma once

#include <sys/socket.h>

#include <string>

#include "base/unique_fd.h"
#include "smdist/options.h"

namespace smdist {

// A numeric IPv4 or IPv6 address and a port. Throws UsageError if the host is not numeric.
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

// Begins to connect, from `host`. Throws SystemError; later errors are returned by
// connect_error(), once the socket is writable. For `arriving` see limit_receive_buffer().
UniqueFd begin_connect(const std::string& host, const Endpoint& to, size_t arriving);
int connect_error(int fd);  // 0: connected

// Returns a closed descriptor if no connection waits. Throws SystemError.
UniqueFd accept_from(int listener);

// Sets the options of a connection between ranks: no delay, and time limits for a silent peer.
void set_peer_options(int fd);

// Limits the bytes that the peer may have in flight; 0: the kernel decides. Only for a listener
// or an unconnected socket: if a limit shrinks after a larger window was offered, the two sides
// can drop each other's packets for ever.
void limit_receive_buffer(int fd, size_t bytes);

// Changes the limit of a connected socket: it may grow, but never shrinks.
void widen_receive_buffer(int fd, size_t bytes);

// Returns the least useful receive buffer of a connection.
size_t min_receive_buffer(int fd);

}  // namespace smdist
