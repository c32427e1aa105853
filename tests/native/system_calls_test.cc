// SPDX-License-Identifier: Apache-2.0
// Tests of the number of system calls that short operations take.
//
// The functions below take the place of the C library's in this program, and count their calls.
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "check.h"
#include "cluster.h"

namespace {

std::atomic<uint64_t> num_sends{0};  // of all threads
std::atomic<uint64_t> num_reads{0};

}  // namespace

extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  ++num_sends;
  return ::syscall(SYS_sendmsg, fd, message, flags);
}

extern "C" ssize_t readv(int fd, const iovec* parts, int count) {
  ++num_reads;
  return ::syscall(SYS_readv, fd, parts, count);
}

namespace smdist {
namespace {

using testing::Cluster;
using testing::Network;
using testing::sum_of;
using testing::text_of;

constexpr int kSums = 500;
constexpr size_t kElements = 256;  // 1 KiB

// Runs sums, one after another, on the calling thread.
void run_sums(Engine& engine, int times) {
  std::vector<float> values(kElements, 0);
  for (int i = 0; i < times; ++i) {
    const auto completion = std::make_shared<Completion>(1);
    Operation operation = sum_of(values);
    operation.timeout = std::chrono::seconds(30);
    operation.ended = [completion](const std::exception_ptr& error) {
      completion->complete(error);
    };
    engine.submit_and_wait(0, std::move(operation), *completion);
    CHECK(text_of(completion->error()).empty());
  }
}

// Runs sums on two ranks that are connected by TCP.
void run_sums_on_both(Cluster& cluster, int times) {
  std::vector<std::thread> callers;
  for (int rank = 0; rank < cluster.size(); ++rank) {
    callers.emplace_back([&, rank] { run_sums(cluster[rank], times); });
  }
  for (std::thread& caller : callers) caller.join();
}

// Each rank receives half a megabyte, so it acknowledges eight times at least.
void acknowledgements_are_sent_with_messages() {
  Cluster cluster(2, Network::kTcp);
  run_sums_on_both(cluster, 10);  // connects
  const uint64_t before = num_sends;
  run_sums_on_both(cluster, kSums);
  const uint64_t sends = num_sends - before;
  CHECK(sends >= 2 * kSums);
  CHECK(sends < 2 * kSums + 8);
}

void a_message_is_read_at_once() {
  Cluster cluster(2, Network::kTcp);
  run_sums_on_both(cluster, 10);
  const uint64_t before = num_reads;
  run_sums_on_both(cluster, kSums);
  CHECK(num_reads - before < 2 * kSums + kSums / 4);
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(acknowledgements_are_sent_with_messages);
  RUN(a_message_is_read_at_once);
}
