// SPDX-License-Identifier: Apache-2.0
// Interface of what lies between a lane and its TCP socket, such as TLS.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <string>

namespace smdist {

// Reads and writes the bytes of a lane through a non-blocking socket. read() and write() return as
// readv() and sendmsg() do, also in errno: EAGAIN if they would block. With EBADMSG, fault() says
// what is wrong.
//
// Thread safety: none.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // Write bytes. They have been copied when it returns, but the socket may not have taken all.
  virtual ssize_t write(const iovec* parts, size_t count) = 0;
  // Read bytes. may_receive: also take new bytes from the socket; false: only bytes that were taken
  // from it before.
  virtual ssize_t read(const iovec* parts, size_t count, bool may_receive) = 0;
  // Give the socket what it has not taken. Returns 0 if nothing is left, else -1.
  virtual int flush() = 0;

  // Return whether there are bytes for flush().
  virtual bool has_unsent() const = 0;
  // Return whether bytes have been taken from the socket that read() has not returned. epoll does
  // not report those.
  virtual bool has_unread() const = 0;
  // Return whether write() cannot continue before read() has received more from the peer.
  virtual bool awaits_peer() const = 0;
  // Tell the peer that no more bytes follow.
  virtual void end_writing() = 0;
  // Return the rest of a sentence that begins with the peer's name.
  virtual const std::string& fault() const = 0;
};

}  // namespace smdist
