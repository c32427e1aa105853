// SPDX-License-Identifier: Apache-2.0
#include "memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "smdist/errors.h"

#ifndef F_SEAL_FUTURE_WRITE  // Linux 5.1
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace smdist {
namespace {

constexpr int kLength = F_SEAL_SHRINK | F_SEAL_GROW;

void require(bool holds, const char* what) {
  if (!holds) throw SystemError(what, errno);
}

}  // namespace

Arena::Arena(Arena&& other) noexcept
    : fd_(std::move(other.fd_)), span_(std::exchange(other.span_, {})) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  unmap();
  fd_ = std::move(other.fd_);
  span_ = std::exchange(other.span_, {});
  return *this;
}

Arena Arena::create(size_t bytes) {
  Arena arena;
  arena.fd_ = UniqueFd(::memfd_create("smdist", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = arena.fd_.get();
  require(arena.fd_.is_open(), "shared memory could not be created");
  require(::ftruncate(fd, static_cast<off_t>(bytes)) == 0,
          "this rank could not set the size of its shared memory");
  arena.map(PROT_READ | PROT_WRITE);
  // Allow other processes to read only, where the kernel supports that seal.
  const bool is_sealed =
      ::fcntl(fd, F_ADD_SEALS, kLength | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0 ||
      ::fcntl(fd, F_ADD_SEALS, kLength | F_SEAL_SEAL) == 0;
  require(is_sealed, "this rank could not seal its shared memory against changes of its size");
  return arena;
}

Arena Arena::adopt(UniqueFd fd) {
  Arena arena;
  arena.fd_ = std::move(fd);
  const int seals = ::fcntl(arena.fd_.get(), F_GET_SEALS);
  require(seals >= 0 && (seals & kLength) == kLength,
          "the shared memory of another rank does not have a fixed size");
  arena.map(PROT_READ);
  arena.fd_.reset();
  return arena;
}

void Arena::map(int protection) {
  struct stat about{};
  require(::fstat(fd_.get(), &about) == 0, "the size of shared memory could not be read");
  const auto bytes = static_cast<size_t>(about.st_size);
  void* at = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd_.get(), 0);
  require(at != MAP_FAILED, "the system call mmap failed for memory that ranks of a host share");
  span_ = {at, bytes};
  ::madvise(at, bytes, MADV_DONTFORK);
}

void Arena::unmap() {
  if (span_.bytes > 0) ::munmap(span_.data, span_.bytes);
  span_ = {};
}

}  // namespace smdist
