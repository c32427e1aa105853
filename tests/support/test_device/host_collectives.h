// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shared_exchange.h"

namespace test_device {

// Stands in for NCCL among the ranks of a host: reduce-scatters and all-gathers on a stream of the
// backend, behind the caller's current stream. The stream stays busy until all ranks have called,
// as a kernel of NCCL does; the host never waits. abort() lets the stream go on.
//
// A thread exchanges the buffers of one operation after the other. It sums in the order of ranks,
// beginning with the one after this rank, and rounds to the dtype after each step, so that the bits
// are others than those of a sum in rank order.
//
// Thread safety: as c10d requires: collectives from one thread at a time; abort() from any thread.
class HostCollectives final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // path: file of the ranks' shared memory. priority: that of the stream; -1 is high, 0 is usual.
  HostCollectives(const std::string& path, int rank, int size, int priority);
  ~HostCollectives() override;

  const std::string getBackendName() const override { return "host_collectives"; }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  void abort() override;
  void shutdown() override;

  // Let the number-th operation from now on raise an error.
  void fail_operation(int number) { fails_in_ = number; }
  int num_operations() const { return num_operations_; }

  // Let this many more exchanges of this rank run, and then none until another call; -1: all.
  void limit_exchanges(int number) { exchanges_left_ = number; }

 private:
  // One operation of the thread, on host memory.
  struct Exchange {
    at::Tensor input;   // pinned
    at::Tensor output;  // pinned
    std::shared_ptr<c10::Event> on_host;
    int64_t held_stream;
    bool reduces;
    c10d::ReduceOp op;
  };

  WorkPtr start(const char* title, Tensors outputs, Tensors inputs, bool reduces,
                const c10d::ReduceOp& op);
  void exchange_all();
  void exchange(const Exchange& next);
  void await_permission();
  void stop();

  SharedExchange memory_;
  const int priority_;
  int fails_in_ = 0;
  std::atomic<int> num_operations_{0};
  std::atomic<int> exchanges_left_{-1};
  std::optional<c10::Stream> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Exchange> exchanges_;  // guarded by mutex_, as is the next one
  bool is_stopped_ = false;
  std::atomic<bool> is_aborted_{false};
  std::thread thread_;
};

}  // namespace test_device
