// SPDX-License-Identifier: Apache-2.0
// Collectives on device tensors in two levels: NCCL within a host, the engine between hosts.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "engine/callback_executor.h"
#include "level_buffers.h"
#include "operation_queue.h"
#include "smdist/engine.h"
#include "two_level_work.h"

namespace smdist::torch_binding {

// Communicators of the two levels, for one device of this rank. Each of them is a backend of torch,
// so that nothing here names NCCL or CUDA.
struct LevelGroups {
  c10::Device device;
  HostLayout layout;
  uint32_t host_group;                            // number in the engine: the ranks of this host
  c10::intrusive_ptr<c10d::Backend> host_reduce;  // reduce-scatters among the ranks of this host
  c10::intrusive_ptr<c10d::Backend> host_gather;  // all-gathers among the same ranks
  // Ranks with this local rank on all hosts; null if there is one host. stop() shuts it down.
  c10::intrusive_ptr<c10d::Backend> between_hosts;
  int64_t piece_bytes;    // maximum length of a piece of a collective
  DeviceContext context;  // from the engine's staging queue
};

// Runs collectives of one process group in two levels, so that each byte crosses the link between a
// device and its host once in each direction: NCCL's reduce-scatter among the devices of a host,
// then a collective of the engine between hosts, in which each rank stages its share alone, then
// NCCL's all-gather among the devices of a host.
//
// Order. All ranks call the collectives of a group in the same order. Each level keeps it:
//   * the reduce-scatter is queued on the device by the call itself, on `host_reduce`, whose stream
//     has the usual priority
//   * a thread waits on the host until it has run, then passes the share on to `between_hosts`
//   * another thread queues the all-gather on `host_gather`, behind the share's arrival
// Two communicators are used within a host, because the all-gather of one operation and the
// reduce-scatter of a later one come in another order on each rank.
//
// Pieces. An all-reduce or an all-gather of long tensors is divided into pieces, each of which goes
// through the levels like a call of its own: one is within the host while another one is between
// hosts. level_buffers.h says why a reduce-scatter is not.
//
// No deadlock. A kernel of NCCL blocks on its device until all ranks of the host have queued it,
// and a stream that waits for a Work blocks until its all-gather has run. A device has fewer queues
// than streams, and what waits in a queue holds up the streams behind it; but streams of different
// priorities share none. So this holds for each kind of step:
//   * Of usual priority are the streams of the caller and those of reduce-scatters. The call queues
//     its reduce-scatters, all pieces of them, before it returns. So a queue has them in the order
//     of the calls on this rank, from whichever threads, and in front of every wait for their Work.
//     What is in front of them belongs to earlier calls, or waits for these.
//   * Of high priority are staging, signals and all-gathers. None of these streams waits for the
//     caller's streams or for a reduce-scatter: threads wait on the host until that has run, and
//     queue copies afterwards. (StagingQueue waits so, too.) Then these queues hold copies, which
//     end by themselves, and all-gathers. An all-gather is queued when its share has come, and all
//     ranks of the host get there without it: it is queued by a thread that waits for no device,
//     but for the shares of earlier pieces.
//   * `between_hosts` has threads and pinned memory for staging of its own, and gets a share only
//     after its reduce-scatter has run: shares are staged in the order of their calls, and none
//     waits for the copy of a later one.
//   * The calling thread allocates, and names the streams that use a tensor, and no thread of this
//     class does: see CopyStreams::record_use().
// All ranks make the calls of groups that share ranks in one order, and a send in it before its
// receive ends, as with any backend on streams. Consider the first call in this order that has not
// ended on some rank. On each rank its reduce-scatter has only ended calls and the caller's work in
// front of it, so it runs; its shares pass between hosts, as no other call of the group is in front
// of it; its all-gather is queued, and runs. In which order and from which threads wait() is called
// does not matter: a wait is behind its own call in every queue, and in front of later calls alone.
//
// Two conditions remain. The device must have free processors for the kernels of both communicators
// of each group that is in use, as for any programs with several NCCL communicators. And the
// all-gathers of two groups with the same ranks come in either order, each on the device of another
// rank: they may not share a queue. A group needs 5 queues of high priority, two more are for
// staging, and a device has CUDA_DEVICE_MAX_CONNECTIONS.
//
// Faults. Each call also starts an all-reduce of 8 bytes of the engine among the ranks of the host,
// which nobody awaits: if ranks call different collectives, or one of them dies or does not call
// before the timeout, the engine fails with an error that names the ranks. Whatever fails here
// aborts the engine, so that all ranks raise an error. When the engine fails, both communicators of
// NCCL are aborted, so that no kernel waits for ever, and streams that wait for a Work go on.
//
// Thread safety: start() as c10d requires: from one thread at a time; stop() from any thread.
class TwoLevelGroup final {
 public:
  TwoLevelGroup(std::shared_ptr<Engine> engine, LevelGroups groups);
  ~TwoLevelGroup();
  TwoLevelGroup(const TwoLevelGroup&) = delete;
  TwoLevelGroup& operator=(const TwoLevelGroup&) = delete;

  c10::Device device() const { return groups_.device; }
  // Return the stream on which results are complete.
  c10::Stream result_stream() const { return result_stream_; }

  // Return the number of pieces of a collective; the Work counts all of them.
  size_t num_pieces(const DeviceCall& call) const {
    return torch_binding::num_pieces(call, groups_.layout, groups_.piece_bytes);
  }
  const DeviceContext& context() const { return groups_.context; }

  // Start a collective behind the work of the calling thread's current stream, and return at once.
  // ended: called when all levels have been queued, or one has failed, from any thread.
  // Requires: level_ops_of(call) returns operations. Throws the error if the first level fails.
  void start(const DeviceCall& call, const c10::intrusive_ptr<TwoLevelWork>& work,
             std::function<void()> ended);

  // Finish the operations that have been started, end the threads, and shut down the communicators
  // of the host. Later calls of start() throw an error.
  void stop();

 private:
  // One piece of a collective, from the call until its last level is queued.
  struct Pending {
    DeviceCall call;
    LevelOps ops;
    LevelBuffers buffers;
    c10::intrusive_ptr<TwoLevelWork> work;
    std::function<void()> ended;               // empty but for the last piece
    CopyStreams::EventPtr ready;               // the caller's work before the call
    c10::intrusive_ptr<c10d::Work> reduced;    // first level; null if there is none
    c10::intrusive_ptr<c10d::Work> exchanged;  // between hosts; null if there is none
    std::exception_ptr error;
  };
  // An all-gather that was queued on the device.
  struct Gather {
    c10::intrusive_ptr<c10d::Work> gathered;  // null if there is none
    CopyStreams::EventPtr on_device;
    std::optional<StreamSignal> signal;  // set behind it, if it is the last one of a Work
  };
  // A Work that has failed, for which streams may wait.
  struct Failed {
    c10::intrusive_ptr<TwoLevelWork> work;
    CopyStreams::EventPtr ready;
  };
  using PendingPtr = std::unique_ptr<Pending>;

  void announce(const DeviceCall& call);
  void reduce_within_host(Pending& operation);
  void record_uses(const LevelBuffers& buffers) const;
  // Steps of the thread that passes shares on to other hosts:
  void exchange_all();
  void await_device(const Pending& operation) const;
  void exchange_between_hosts(Pending& operation);
  // Steps of the thread that queues all-gathers:
  void gather_all();
  void gather_within_host(Pending& operation);
  void check_gathers();
  bool has_run(const Gather& gather) const;
  bool has_open_ends() const { return !gathers_.empty() || !failed_.empty(); }
  void release_streams();
  void end(PendingPtr operation, const CopyStreams::EventPtr& on_device);
  // Abort the engine and the communicators of the host, and return the error of all ranks.
  std::exception_ptr fail(const std::exception_ptr& cause);
  void abort_within_host();

  const std::shared_ptr<Engine> engine_;
  const LevelGroups groups_;
  const c10::Stream staging_stream_;  // shares are passed on behind it; no work is queued there
  const c10::Stream result_stream_;
  const pid_t process_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> is_stopped_{false};
  std::once_flag aborted_;
  std::once_flag stopped_;
  OperationQueue<PendingPtr> to_exchange_;
  OperationQueue<PendingPtr> to_gather_;
  std::deque<Gather> gathers_;  // used by one thread only, as are the next two
  std::vector<Failed> failed_;
  std::optional<std::chrono::steady_clock::time_point> failed_at_;  // first sight of a failure
  CallbackExecutor callbacks_;
  std::thread exchanging_;
  std::thread gathering_;
};

// Stop all groups of this process. Call when the engines were shut down, before Python is
// finalized: afterwards their threads could not destroy tensors.
void stop_all_two_level_groups();

}  // namespace smdist::torch_binding
