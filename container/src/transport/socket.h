// SPDX-License-Identifier: Apache-2.0
// TCP sockets: non-blocking, closed on exec, numeric addresses only.
#pragma once

#include <sys/socket.h>

#include <chrono>
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
// Return the address of the other side as text, such as "10.0.0.4:43512".
std::string peer_text(int fd);

// Return the numeric address of the other side, such as "10.0.0.4"; empty if it is not known.
std::string peer_host(int fd);

// Set an option whose value is an int. Throws SystemError.
void set_socket_option(int fd, int level, int name, int value);

// Open a socket that listens on a free port of this address. Throws UsageError, SystemError.
UniqueFd listen_on(const std::string& host);

// Begin to connect from the address `host`. Throws SystemError; later errors are returned by
// connect_error() when the socket is writable. arriving: see limit_receive_buffer().
UniqueFd begin_connect(const std::string& host, const Endpoint& to, size_t arriving);
// Return the errno of a connection attempt; 0: connected.
int connect_error(int fd);

// Accept a connection. Returns a closed descriptor if there is none. Throws SystemError.
UniqueFd accept_from(int listener);

// Set the options of a connection between ranks. Short messages are sent without a delay. A host
// that is silent for a time limit is lost: see watch_silence().
void set_peer_options(int fd, std::chrono::milliseconds silence);

// Limit the bytes that the peer may have in flight; 0: the kernel decides. Only for a listener or
// an unconnected socket: if the limit of a connected socket shrinks, the two sides can drop each
// other's packets for ever.
void limit_receive_buffer(int fd, size_t bytes);

// Raise the limit of a connected socket. A smaller limit has no effect.
void widen_receive_buffer(int fd, size_t bytes);

// Smallest receive buffer in bytes, for connections with short segments.
constexpr size_t kMinReceiveBuffer = 24 << 10;

// Return the smallest receive buffer in bytes with which a connection works well.
size_t min_receive_buffer(int fd);

}  // namespace smdist
