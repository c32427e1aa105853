// SPDX-License-Identifier: Apache-2.0
#include "transport/socket.h"

#include <arpa/inet.h>
#include <linux/socket.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "smdist/errors.h"
#include "transport/silence.h"

namespace smdist {
namespace {

// Maximum number of unsent bytes in the kernel: with few of them, the send queue can alternate
// between messages.
constexpr int kUnsentBytes = 256 << 10;

UniqueFd open_socket(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) throw SystemError("a socket could not be opened", errno);
  return fd;
}

void bind_to(int fd, const Address& address, const std::string& host) {
  if (::bind(fd, address.raw(), address.bytes) != 0) {
    throw SystemError("a socket could not be bound to the address " + host, errno);
  }
}

// Returns the size available for data. The kernel reports twice that size, including its own
// records.
size_t receive_buffer_of(int fd) {
  int twice = 0;
  socklen_t bytes = sizeof twice;
  ::getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &twice, &bytes);
  return static_cast<size_t>(twice) / 2;
}

// Returns whether this process has set the size of the receive buffer.
bool is_locked(int fd) {
  int locks = SOCK_RCVBUF_LOCK;
  socklen_t bytes = sizeof locks;
  ::getsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &locks, &bytes);
  return (locks & SOCK_RCVBUF_LOCK) != 0;
}

}  // namespace

void set_socket_option(int fd, int level, int name, int value) {
  if (::setsockopt(fd, level, name, &value, sizeof value) != 0) {
    throw SystemError("the system call setsockopt failed for a TCP socket between ranks", errno);
  }
}

Address::Address(const std::string& host, uint16_t port) {
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    bytes = sizeof(sockaddr_in);
  } else if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    bytes = sizeof(sockaddr_in6);
  } else {
    throw UsageError("'" + host + "' is not a numeric IPv4 or IPv6 address");
  }
}

Endpoint endpoint_of(const Address& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    return {text, ntohs(v6->sin6_port), {}};
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
  ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
  return {text, ntohs(v4->sin_port), {}};
}

Endpoint local_endpoint(int fd) {
  Address address;
  if (::getsockname(fd, address.raw(), &address.bytes) != 0) {
    throw SystemError("the address of a socket could not be read", errno);
  }
  return endpoint_of(address);
}

std::string peer_text(int fd) {
  Address address;
  if (::getpeername(fd, address.raw(), &address.bytes) != 0) return "an unknown address";
  if (address.storage.ss_family == AF_UNIX) return "this host";
  const Endpoint endpoint = endpoint_of(address);
  return endpoint.host + ":" + std::to_string(endpoint.port);
}

std::string peer_host(int fd) {
  Address address;
  if (::getpeername(fd, address.raw(), &address.bytes) != 0) return "";
  return endpoint_of(address).host;
}

UniqueFd listen_on(const std::string& host) {
  const Address address(host, 0);
  UniqueFd fd = open_socket(address.storage.ss_family);
  bind_to(fd.get(), address, host);
  if (::listen(fd.get(), SOMAXCONN) != 0) {
    throw SystemError("a socket could not listen on " + host, errno);
  }
  return fd;
}

UniqueFd begin_connect(const std::string& host, const Endpoint& to, size_t arriving) {
  const Address target(to.host, to.port);
  const Address source(host, 0);
  UniqueFd fd = open_socket(target.storage.ss_family);
  if (source.storage.ss_family == target.storage.ss_family) {
    set_socket_option(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    bind_to(fd.get(), source, host);
  }
  if (arriving > 0) limit_receive_buffer(fd.get(), arriving);
  const bool is_failed = ::connect(fd.get(), target.raw(), target.bytes) != 0;
  if (is_failed && errno != EINPROGRESS && errno != EINTR && errno != ECONNREFUSED) {
    throw SystemError("a connection to " + to.host + " could not be opened", errno);
  }
  if (is_failed && errno == ECONNREFUSED) ::shutdown(fd.get(), SHUT_RDWR);
  return fd;
}

int connect_error(int fd) {
  int error = 0;
  socklen_t bytes = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) return errno;
  if (error != 0) return error;
  Address peer;
  if (::getpeername(fd, peer.raw(), &peer.bytes) != 0) return ECONNREFUSED;
  if (peer.storage.ss_family == AF_UNIX) return 0;
  // On one host, the kernel may assign the socket the port that it wants to reach. It then connects
  // to itself, which means that no process listens there.
  const Endpoint remote = endpoint_of(peer);
  const Endpoint local = local_endpoint(fd);
  return remote.port == local.port && remote.host == local.host ? ECONNREFUSED : 0;
}

UniqueFd accept_from(int listener) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd.is_open()) return fd;
  switch (errno) {
    case EAGAIN:
    case EINTR:
    case ECONNABORTED:  // the connection ended while it waited; the kernel also
    case ENETDOWN:      // reports network errors of the new connection here
    case EPROTO:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return fd;
  }
  throw SystemError("a connection could not be accepted", errno);
}

void set_peer_options(int fd, std::chrono::milliseconds silence) {
  set_socket_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  watch_silence(fd, silence);
  set_socket_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
}

// With a buffer of fewer than four segments, the sender would stall until a timer expires.
size_t min_receive_buffer(int fd) {
  constexpr size_t kFew = 4;
  int segment = 0;
  socklen_t bytes = sizeof segment;
  ::getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, &bytes);
  return std::max(kMinReceiveBuffer, kFew * static_cast<size_t>(std::max(segment, 0)));
}

// Removes the limit if it exceeds the system's maximum, because the kernel's automatic size may be
// larger.
void limit_receive_buffer(int fd, size_t bytes) {
  constexpr int kUnlocked = 0;
  if (bytes > 0) set_socket_option(fd, SOL_SOCKET, SO_RCVBUF, static_cast<int>(bytes));
  if (bytes == 0 || receive_buffer_of(fd) < bytes) {
    ::setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &kUnlocked, sizeof kUnlocked);
  }
}

// Keeps a size that the kernel has chosen, because it may be larger than any limit that can be set.
void widen_receive_buffer(int fd, size_t bytes) {
  constexpr int kWidest = 1 << 30;
  if (bytes > 0 && (bytes <= receive_buffer_of(fd) || !is_locked(fd))) return;
  limit_receive_buffer(fd, bytes);
  set_socket_option(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, kWidest);  // use the whole buffer
}

}  // namespace smdist
