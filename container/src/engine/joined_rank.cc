// SPDX-License-Identifier: Apache-2.0
#include "smdist/joined_rank.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "smdist/errors.h"

namespace smdist {

using Clock = std::chrono::steady_clock;

// Stores what the engine's threads have found since the last look, and ends waits for it.
//
// Thread safety: all methods may be called from any thread.
class JoinMailbox final {
 public:
  struct Found {
    std::vector<std::pair<size_t, Announced>> announced;  // by number in `groups`
    uint32_t num_ended = 0;                               // operations of the group `control`
    std::exception_ptr error;
  };

  void add(size_t group, const Announced& announced) {
    const std::lock_guard<std::mutex> lock(mutex_);
    found_.announced.emplace_back(group, announced);
    ring();
  }

  void add_end(const std::exception_ptr& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++found_.num_ended;
    if (error) found_.error = error;
    ring();
  }

  // Removes what was found. bell: set to a completion that is done as soon as there is more.
  Found take(std::shared_ptr<Completion>& bell) {
    const std::lock_guard<std::mutex> lock(mutex_);
    bell_ = bell = std::make_shared<Completion>(1);
    has_rung_ = false;
    return std::exchange(found_, {});
  }

 private:
  void ring() {
    if (bell_ && !std::exchange(has_rung_, true)) bell_->complete(nullptr);
  }

  std::mutex mutex_;
  Found found_;
  std::shared_ptr<Completion> bell_;
  bool has_rung_ = false;
};

class JoinedRank::Impl final {
 public:
  Impl(std::shared_ptr<Engine> engine, const std::vector<uint32_t>& groups, uint32_t control,
       std::chrono::milliseconds timeout)
      : engine_(std::move(engine)),
        control_(control),
        timeout_(timeout),
        mailbox_(std::make_shared<JoinMailbox>()) {
    for (const uint32_t id : groups) {
      groups_.emplace_back();
      groups_.back().id = id;
      groups_.back().next = engine_->num_submitted(id);
    }
    join();
    for (size_t i = 0; i < groups_.size(); ++i) watch(i, 0);
  }

  bool advance(std::chrono::milliseconds limit) {
    const Clock::time_point until = Clock::now() + limit;
    while (!is_finished()) {
      std::shared_ptr<Completion> bell;
      const JoinMailbox::Found found = mailbox_->take(bell);
      if (found.error) std::rethrow_exception(found.error);
      for (uint32_t i = 0; i < found.num_ended; ++i) go_on();
      for (const auto& [group, announced] : found.announced) answer(group, announced);
      if (!found.announced.empty() || found.num_ended > 0) continue;
      if (!engine_->wait(*bell, until) && Clock::now() >= until) return false;
    }
    return true;
  }

  int last() const { return last_; }

 private:
  // A group, and how far this rank has come in it.
  struct Answered {
    uint32_t id = 0;
    uint64_t next = 0;                 // number of the next collective
    std::shared_ptr<CallNumber> call;  // call of which further collectives follow; null: none
    uint64_t bytes = 0;                // length of the collectives of `call` so far
    uint64_t end = 0;                  // number of collectives of the rank that has joined last
  };
  using Counts = std::vector<uint64_t>;  // by rank and group

  enum class Phase : uint8_t {
    kJoining,   // some ranks have not joined
    kAgreeing,  // some ranks may not know yet that all have joined
    kEnded,
  };

  void go_on() {
    if (phase_ == Phase::kJoining) {
      count_joined();
      phase_ = Phase::kAgreeing;
      return agree();
    }
    phase_ = Phase::kEnded;
  }

  // Starts the all-gather that ends when all ranks have joined.
  void join() {
    const auto mine = std::make_shared<Counts>();
    for (const Answered& each : groups_) mine->push_back(each.next);
    counts_ = std::make_shared<Counts>(mine->size() * static_cast<size_t>(engine_->size()));
    Operation operation;
    operation.kind = Collective::kAllGather;
    operation.timeout = timeout_;
    operation.is_patient = true;
    operation.inputs = {{mine->data(), mine->size() * sizeof(uint64_t)}};
    operation.outputs = {{counts_->data(), counts_->size() * sizeof(uint64_t)}};
    operation.ended = [mailbox = mailbox_, mine, counts = counts_](
                          const std::exception_ptr& error) { mailbox->add_end(error); };
    engine_->submit(control_, std::move(operation));
  }

  // Starts the barrier after which ranks may call collectives again. A rank that called one before
  // another one knows that all have joined would get zeros from it.
  void agree() {
    Operation operation;
    operation.kind = Collective::kBarrier;
    operation.timeout = timeout_;
    operation.ended = [mailbox = mailbox_](const std::exception_ptr& error) {
      mailbox->add_end(error);
    };
    engine_->submit(control_, std::move(operation));
  }

  void watch(size_t group, uint32_t part) {
    const Answered& here = groups_[group];
    engine_->on_announced(here.id, here.next, part,
                          [mailbox = mailbox_, group](const Announced& announced) {
                            mailbox->add(group, announced);
                          });
  }

  void answer(size_t group, const Announced& announced) {
    Answered& here = groups_[group];
    if (phase_ != Phase::kJoining && here.next >= here.end) return;  // this rank calls it itself
    const bool goes_on = announced.kind == Collective::kAllReduce &&
                         (announced.op == ReduceOp::kSum || announced.op == ReduceOp::kAverage);
    const bool is_refused = announced.has_ended || !goes_on;
    if (!is_refused) {
      contribute(here, announced);
      if (here.call && here.bytes < here.call->call_bytes) {
        return watch(group, here.call->num_started);
      }
    } else if (!here.call) {
      refuse(here);
    }
    here.call = nullptr;
    ++here.next;
    watch(group, 0);
  }

  // Submits the all-reduce over zeros.
  void contribute(Answered& here, const Announced& announced) {
    const auto zeros = std::make_shared<std::vector<uint8_t>>(announced.bytes);
    Operation operation;
    operation.kind = announced.kind;
    operation.dtype = announced.dtype;
    operation.op = announced.op;
    operation.scale = announced.scale;
    operation.layout = announced.layout;
    operation.timeout = timeout_;
    operation.inputs = operation.outputs = {{zeros->data(), zeros->size()}};
    // errors: those that concern this rank end the engine, and so the all-gather, too
    operation.done = [zeros](const std::exception_ptr&) {};
    if (announced.bytes != announced.call_bytes) {
      if (!here.call) {
        here.call = std::make_shared<CallNumber>(CallNumber{announced.call_bytes, 0, 0});
        here.bytes = 0;
      }
      here.bytes += announced.bytes;
      operation.call = here.call;
    }
    engine_->submit(here.id, std::move(operation));
  }

  void refuse(const Answered& here) {
    Operation operation;
    operation.refusal =
        "has joined, and takes part only in all-reduces with sum or average until all ranks have "
        "joined";
    operation.refusal_details = kJoinedDetails;
    operation.timeout = timeout_;
    operation.done = [](const std::exception_ptr&) {};
    engine_->submit(here.id, std::move(operation));
  }

  // Reads how many collectives each rank had submitted when it joined.
  void count_joined() {
    const size_t width = groups_.size();
    uint64_t most = 0;
    for (size_t rank = 0; rank * width < counts_->size(); ++rank) {
      const auto first = counts_->begin() + static_cast<ptrdiff_t>(rank * width);
      const uint64_t total =
          std::accumulate(first, first + static_cast<ptrdiff_t>(width), uint64_t{0});
      if (total >= most) last_ = static_cast<int>(rank);
      most = std::max(most, total);
      for (size_t i = 0; i < width; ++i) {
        groups_[i].end = std::max(groups_[i].end, first[static_cast<ptrdiff_t>(i)]);
      }
    }
  }

  bool is_finished() const {
    return phase_ == Phase::kEnded &&
           std::all_of(groups_.begin(), groups_.end(),
                       [](const Answered& each) { return each.next >= each.end; });
  }

  const std::shared_ptr<Engine> engine_;
  const uint32_t control_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<JoinMailbox> mailbox_;
  std::vector<Answered> groups_;
  std::shared_ptr<Counts> counts_;
  Phase phase_ = Phase::kJoining;
  int last_ = 0;
};

JoinedRank::JoinedRank(std::shared_ptr<Engine> engine, std::vector<uint32_t> groups,
                       uint32_t control, std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>(std::move(engine), groups, control, timeout)) {}
JoinedRank::~JoinedRank() = default;
bool JoinedRank::advance(std::chrono::milliseconds limit) { return impl_->advance(limit); }
int JoinedRank::last() const { return impl_->last(); }

}  // namespace smdist
