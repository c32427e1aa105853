// SPDX-License-Identifier: Apache-2.0
// Connections between all pairs of ranks, for bare_hosts.cc.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace bare {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::perror(what);
  std::abort();
}

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

inline Address on_network(const char* host, int port) {
  Address address;
  auto& place = reinterpret_cast<sockaddr_in&>(address.storage);
  place.sin_family = AF_INET;
  place.sin_port = htons(static_cast<uint16_t>(port));
  require(::inet_pton(AF_INET, host, &place.sin_addr) == 1, host);
  address.length = sizeof place;
  return address;
}

// Returns an abstract Unix address: it needs no file, and network namespaces keep hosts apart.
inline Address on_host(const std::string& name) {
  Address address;
  auto& place = reinterpret_cast<sockaddr_un&>(address.storage);
  place.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), place.sun_path + 1);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// window: limit of the bytes in flight to the socket; 0: the kernel decides.
inline int open_socket(const Address& address, size_t window) {
  const int fd = ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int buffer = static_cast<int>(window);
  const int yes = 1;
  if (buffer > 0) ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);  // accepted sockets inherit it
  return fd;
}

// Connects to a peer; retries until the peer listens.
inline int dial(const Address& address, size_t own, size_t window) {
  while (true) {
    const int fd = open_socket(address, window);
    const auto name = static_cast<uint8_t>(own);
    if (::connect(fd, address.get(), address.length) == 0) {
      require(::send(fd, &name, 1, 0) == 1, "sending the rank");
      return fd;
    }
    ::close(fd);
    ::usleep(10'000);
  }
}

// Connects to all lower members and accepts all higher ones. Returns sockets by member; -1 for this
// one.
inline std::vector<int> mesh(const std::vector<Address>& everyone, size_t own, size_t window) {
  std::vector<int> sockets(everyone.size(), -1);
  const int listener = open_socket(everyone[own], window);
  require(::bind(listener, everyone[own].get(), everyone[own].length) == 0, "binding");
  require(::listen(listener, 64) == 0, "listening");
  for (size_t other = 0; other < own; ++other) sockets[other] = dial(everyone[other], own, window);
  for (size_t left = everyone.size() - own - 1; left > 0; --left) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    uint8_t name = 0;
    require(fd >= 0 && ::recv(fd, &name, 1, 0) == 1, "receiving the rank of a peer");
    sockets[name] = fd;
  }
  ::close(listener);
  return sockets;
}

}  // namespace bare
