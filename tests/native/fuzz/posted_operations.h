// SPDX-License-Identifier: Apache-2.0
// Operations that a fuzz target posts to a ProgressEngine, and the frames that peers may send for
// them.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/progress_engine.h"
#include "engine/submission.h"
#include "fuzz_input.h"

namespace smdist::fuzzing {

// A message of an operation's plan, as far as a peer knows it.
struct PlannedMessage {
  StepKind kind = StepKind::kSend;
  int member = 0;
  uint32_t tag = 0;
  uint64_t bytes = 0;
};

// A posted operation, and its memory, which is freed as soon as the operation has ended.
struct Posted {
  OperationId id;
  Descriptor descriptor;
  Operation operation;  // without memory
  std::shared_ptr<Group> group;
  std::vector<PlannedMessage> messages;
  std::vector<std::unique_ptr<uint8_t[]>> buffers;
  int num_ended = 0;

  // The last part of a message that a member has sent, by member and tag.
  struct Part {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  std::map<std::pair<int, uint32_t>, Part> sent;

  // Return one of the messages to the member (kSend), or from it (kReceive); null if there is none.
  const PlannedMessage* pick(FuzzInput& input, int member, StepKind kind) const;
  // Return the member's number; none if the rank is not a member.
  std::optional<int> member_of(int rank) const;
  // Return the descriptor that an honest member sends.
  Descriptor descriptor_of_member(int member) const;
};

// Makes operations of all kinds from an input, numbers them as Engine does, and posts them.
class PostedOperations final {
 public:
  PostedOperations(const Options& options, ProgressEngine& engine);

  // Post an operation, unless so many have been posted that more would only take time.
  void post(FuzzInput& input);
  bool is_empty() const { return all_.empty(); }
  Posted& pick(FuzzInput& input) { return all_[input.below(256) % all_.size()]; }
  // Return whether `ended` was called once for each operation, and no group has one pending.
  bool have_all_ended() const;

 private:
  void add_group(uint32_t id, std::vector<int> members);
  void number(Submission& submission);
  Span buffer(Posted& posted, size_t bytes) const;
  std::vector<Span> parts(Posted& posted, FuzzInput& input, size_t bytes) const;
  void make_buffers(Posted& posted, FuzzInput& input) const;

  const Options& options_;
  ProgressEngine& engine_;
  std::vector<std::shared_ptr<Group>> groups_;
  std::vector<uint64_t> num_collectives_;
  std::map<OperationId, uint64_t> num_messages_;  // by channel
  std::deque<Posted> all_;
};

}  // namespace smdist::fuzzing
