// SPDX-License-Identifier: Apache-2.0
#include "transport/fd_passing.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "smdist/errors.h"

namespace smdist {
namespace {

struct LocalAddress {
  explicit LocalAddress(const std::string& name) {
    where.sun_family = AF_UNIX;
    const size_t length = std::min(name.size(), sizeof where.sun_path - 1);
    std::memcpy(where.sun_path + 1, name.data(), length);  // a leading zero makes it abstract
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&where); }

  sockaddr_un where{};
  socklen_t bytes = 0;
};

UniqueFd open_local() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// A message of one byte, with space for one descriptor beside it.
struct Envelope {
  Envelope() {
    what.msg_iov = &part;
    what.msg_iovlen = 1;
    what.msg_control = control;
    what.msg_controllen = sizeof control;
  }

  uint8_t byte = 'A';
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr what{};
};

}  // namespace

UniqueFd listen_unix(const std::string& name) {
  const LocalAddress address(name);
  UniqueFd fd = open_local();
  const bool listens = fd.is_open() && ::bind(fd.get(), address.raw(), address.bytes) == 0 &&
                       ::listen(fd.get(), SOMAXCONN) == 0;
  if (!listens) throw SystemError("a Unix socket could not be opened", errno);
  return fd;
}

UniqueFd connect_unix(const std::string& name) {
  const LocalAddress address(name);
  UniqueFd fd = open_local();
  if (fd.is_open() && ::connect(fd.get(), address.raw(), address.bytes) != 0) fd.reset();
  return fd;
}

bool is_unix_socket(int fd) {
  int domain = 0;
  socklen_t bytes = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX;
}

FdTransfer send_fd(int socket, int fd) {
  Envelope envelope;
  cmsghdr* header = CMSG_FIRSTHDR(&envelope.what);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  const ssize_t sent = ::sendmsg(socket, &envelope.what, MSG_NOSIGNAL);
  if (sent == 1) return FdTransfer::kDone;
  return errno == EAGAIN || errno == EINTR ? FdTransfer::kBlocked : FdTransfer::kFailed;
}

// Receives one descriptor. Closes all received descriptors if the message is invalid.
FdTransfer receive_fd(int socket, UniqueFd* fd) {
  Envelope envelope;
  const ssize_t got = ::recvmsg(socket, &envelope.what, MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return FdTransfer::kBlocked;
  const cmsghdr* header = CMSG_FIRSTHDR(&envelope.what);
  if (got < 0 || header == nullptr) return FdTransfer::kFailed;
  const bool carries = header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS;
  const size_t count = carries ? (header->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
  int received[2] = {-1, -1};
  std::memcpy(received, CMSG_DATA(header), std::min(count, size_t{2}) * sizeof(int));
  UniqueFd first(received[0]);
  const UniqueFd second(received[1]);
  if (got != 1 || !first.is_open() || second.is_open()) return FdTransfer::kFailed;
  *fd = std::move(first);
  return FdTransfer::kDone;
}

}  // namespace smdist
