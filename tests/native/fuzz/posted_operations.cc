// SPDX-License-Identifier: Apache-2.0
#include "posted_operations.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "engine/checks.h"
#include "smdist/errors.h"

namespace smdist::fuzzing {
namespace {

constexpr size_t kMostOperations = 10;
constexpr size_t kCounts[] = {0, 1, 7, 16, 40, 100, 300};

// Returns the length of a buffer. The two rare ones are sent in blocks of shared memory, and over
// several lanes.
size_t bytes_of(FuzzInput& input, size_t width) {
  const size_t choice = input.byte();
  if (choice == 255) return (66 << 10) / width * width;
  if (choice >= 246) return (9 << 10) / width * width;
  return kCounts[choice % 7] * width;
}

}  // namespace

const PlannedMessage* Posted::pick(FuzzInput& input, int member, StepKind kind) const {
  const size_t start = input.byte();
  for (size_t i = 0; i < messages.size(); ++i) {
    const PlannedMessage& each = messages[(start + i) % messages.size()];
    if (each.kind == kind && each.member == member) return &each;
  }
  return nullptr;
}

std::optional<int> Posted::member_of(int rank) const {
  const auto found = std::find(group->members.begin(), group->members.end(), rank);
  if (found == group->members.end()) return std::nullopt;
  return static_cast<int>(found - group->members.begin());
}

Descriptor Posted::descriptor_of_member(int member) const {
  Descriptor theirs = descriptor_for(descriptor, operation, member, group->size());
  std::swap(theirs.to_bytes, theirs.from_bytes);
  if (theirs.kind == Collective::kSend) {
    theirs.kind = Collective::kReceive;
  } else if (theirs.kind == Collective::kReceive) {
    theirs.kind = Collective::kSend;
  }
  return theirs;
}

PostedOperations::PostedOperations(const Options& options, ProgressEngine& engine)
    : options_(options), engine_(engine) {
  add_group(0, {0, 1, 2});
  add_group(1, {2, 0});
  add_group(2, {1, 2, 0});
}

void PostedOperations::add_group(uint32_t id, std::vector<int> members) {
  std::vector<int> hosts;
  int own = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    hosts.push_back(options_.hosts[static_cast<size_t>(members[i])]);
    if (members[i] == options_.rank) own = static_cast<int>(i);
  }
  const bool is_on_one_host = std::set<int>(hosts.begin(), hosts.end()).size() == 1;
  groups_.push_back(std::make_shared<Group>(id, std::move(members), own, HostTopology(hosts),
                                            is_on_one_host, options_.window));
  num_collectives_.push_back(0);
}

Span PostedOperations::buffer(Posted& posted, size_t bytes) const {
  posted.buffers.push_back(std::make_unique<uint8_t[]>(bytes));
  return {posted.buffers.back().get(), bytes};
}

// Returns the parts of all ranks, in one buffer or in one for each.
std::vector<Span> PostedOperations::parts(Posted& posted, FuzzInput& input, size_t bytes) const {
  const auto ranks = static_cast<size_t>(posted.group->size());
  if (input.flag()) return {buffer(posted, bytes * ranks)};
  std::vector<Span> spans;
  for (size_t i = 0; i < ranks; ++i) spans.push_back(buffer(posted, bytes));
  return spans;
}

void PostedOperations::make_buffers(Posted& posted, FuzzInput& input) const {
  Operation& operation = posted.operation;
  const size_t width = element_bytes(operation.dtype);
  const size_t bytes = bytes_of(input, width);
  switch (operation.kind) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      operation.inputs = {buffer(posted, bytes)};
      operation.outputs =
          input.flag() ? operation.inputs : std::vector<Span>{buffer(posted, bytes)};
      return;
    case Collective::kReduceScatter:
    case Collective::kScatter:
      operation.inputs = parts(posted, input, bytes);
      operation.outputs = {buffer(posted, bytes)};
      return;
    case Collective::kAllGather:
    case Collective::kGather:
      operation.inputs = {buffer(posted, bytes)};
      operation.outputs = parts(posted, input, bytes);
      return;
    case Collective::kAllToAll:
      for (int i = 0; i < posted.group->size(); ++i) {
        const size_t part = i == posted.group->rank ? bytes : bytes_of(input, width);
        operation.inputs.push_back(buffer(posted, part));
        operation.outputs.push_back(
            buffer(posted, i == posted.group->rank ? bytes : bytes_of(input, width)));
      }
      return;
    case Collective::kSend:
      operation.inputs = {buffer(posted, bytes)};
      return;
    case Collective::kReceive:
      operation.outputs = {buffer(posted, bytes)};
      return;
    case Collective::kBarrier:
      return;
  }
}

// Numbers an operation. Sends and receives get their number from the engine; the copy here is that
// of a receive that no other receive from any rank precedes.
void PostedOperations::number(Submission& submission) {
  const size_t group = submission.group->id;
  if (submission.id.role == Role::kCollective) {
    submission.id.sequence = num_collectives_[group]++;
    return;
  }
  submission.id.channel = submission.operation.tag;
}

void PostedOperations::post(FuzzInput& input) {
  if (all_.size() == kMostOperations) return;
  all_.emplace_back();
  Posted& posted = all_.back();
  Operation& operation = posted.operation;
  operation.kind = static_cast<Collective>(input.below(kCollectives));
  operation.dtype = input.flag() ? Dtype::kFloat32 : static_cast<Dtype>(input.below(kDtypes));
  operation.op = input.flag() ? ReduceOp::kSum : static_cast<ReduceOp>(input.below(kReduceOps));
  const size_t group = input.flag() ? 0 : input.below(groups_.size());
  posted.group = groups_[group];
  operation.root = static_cast<int>(input.below(4)) % posted.group->size();
  operation.peer = static_cast<int>(input.below(5)) - 1;
  operation.tag = static_cast<uint32_t>(input.below(2));
  make_buffers(posted, input);
  const bool is_late = input.byte() == 0xff;
  operation.timeout = is_late ? std::chrono::milliseconds(1) : std::chrono::hours(1);
  operation.ended = [&posted](const std::exception_ptr&) {
    ++posted.num_ended;
    posted.buffers.clear();
  };
  const int rank = posted.group->rank;
  const int size = posted.group->size();
  try {
    check(operation, rank, size);
  } catch (const UsageError&) {
    all_.pop_back();
    return;
  }
  Submission submission;
  submission.group = posted.group;
  const bool is_message = is_point_to_point(operation.kind);
  submission.id.group = posted.group->id;
  if (is_message)
    submission.id.role = operation.kind == Collective::kSend ? Role::kSend : Role::kReceive;
  submission.descriptor = descriptor_of(operation, rank, size);
  submission.deadline = Clock::now() + (is_late ? -operation.timeout : operation.timeout);
  submission.operation = operation;
  number(submission);
  submission.choice =
      choose(submission.descriptor, options_.tuning, *posted.group, submission.id.sequence);
  ++posted.group->pending;
  posted.id = submission.id;
  posted.descriptor = submission.descriptor;
  submission.make_plan();
  for (const Step& step : submission.plan.steps) {
    if (step.peer < 0) continue;
    const Region& region = step.kind == StepKind::kSend ? step.sources[0] : step.target;
    posted.messages.push_back({step.kind, step.peer, step.tag, region.bytes});
  }
  if (is_message && operation.peer >= 0) {
    OperationId channel = submission.id;
    channel.peer = posted.group->members[static_cast<size_t>(operation.peer)];
    posted.id = channel;
    posted.id.sequence = num_messages_[channel]++;
  }
  if (submission.may_be_shared()) submission.plan = {};
  engine_.post(std::move(submission));
}

bool PostedOperations::have_all_ended() const {
  return std::all_of(all_.begin(), all_.end(),
                     [](const Posted& each) { return each.num_ended == 1; }) &&
         std::all_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->pending == 0; });
}

}  // namespace smdist::fuzzing
