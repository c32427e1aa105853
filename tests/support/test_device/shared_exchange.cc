// SPDX-License-Identifier: Apache-2.0
#include "shared_exchange.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace test_device {
namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

void Pauses::pause() {
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds_));
  microseconds_ = std::min(2 * microseconds_, 1000);
}

// A new file is full of zeros, as the counters are at the start.
SharedExchange::SharedExchange(const std::string& path, int rank, int size)
    : rank_(rank), size_(size), bytes_(kPageBytes + static_cast<size_t>(size) * kMaxBytes) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  TORCH_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes_)) == 0,
              "testdev: the memory of a host could not be made at ", path);
  void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  TORCH_CHECK(memory != MAP_FAILED, "testdev: the memory of a host could not be mapped");
  memory_ = static_cast<char*>(memory);
}

SharedExchange::~SharedExchange() { munmap(memory_, bytes_); }

bool SharedExchange::exchange(const void* buffer, size_t bytes,
                              const std::function<void(int, const char*)>& read) {
  const uint64_t number = ++num_exchanges_;
  if (!await(&Counters::read, number - 1)) return false;
  std::memcpy(buffer_of(rank_), buffer, bytes);
  counters_of(rank_).arrived = number;
  if (!await(&Counters::arrived, number)) return false;
  for (int i = 1; i <= size_; ++i) read((rank_ + i) % size_, buffer_of((rank_ + i) % size_));
  counters_of(rank_).read = number;
  return true;
}

SharedExchange::Counters& SharedExchange::counters_of(int rank) const {
  return reinterpret_cast<Counters*>(memory_)[rank];
}

char* SharedExchange::buffer_of(int rank) const {
  return memory_ + kPageBytes + static_cast<size_t>(rank) * kMaxBytes;
}

bool SharedExchange::await(std::atomic<uint64_t> Counters::* counter, uint64_t count) const {
  Pauses pauses;
  for (int rank = 0; rank < size_; ++rank) {
    while (counters_of(rank).*counter < count) {
      if (is_aborted_) return false;
      pauses.pause();
    }
  }
  return true;
}

}  // namespace test_device
