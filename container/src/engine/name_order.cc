// SPDX-License-Identifier: Apache-2.0
#include "engine/name_order.h"

#include <algorithm>
#include <utility>

#include "smdist/errors.h"

namespace smdist {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Receives wait as long as the job lives.
constexpr std::chrono::hours kAlways{24 * 365};

// FNV-1a: http://www.isthe.com/chongo/tech/comp/fnv/
uint64_t hash_of(const std::string& name) {
  uint64_t hash = 14695981039346656037U;
  for (const char each : name) hash = (hash ^ static_cast<uint8_t>(each)) * 1099511628211U;
  return hash;
}

}  // namespace

std::shared_ptr<NameOrder> NameOrder::create(Settings settings) {
  return std::shared_ptr<NameOrder>(new NameOrder(std::move(settings)));
}

NameOrder::NameOrder(Settings settings) : settings_(std::move(settings)) {}

NameOrder::~NameOrder() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

template <typename Body>
void NameOrder::guarded(const Body& body) {
  std::vector<std::function<void()>> failing;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      body();
    } catch (...) {
      fail_all(std::current_exception());
    }
    failing.swap(failing_);
  }
  for (const auto& each : failing) each();
}

void NameOrder::bring(const std::string& name, Start start, Fail fail) {
  guarded([&] {
    if (failure_) return fail_later(fail, failure_);
    if (!has_begun_) begin();
    const uint64_t hash = hash_of(name);
    waiting_[hash].push_back({name, std::move(start), std::move(fail), Clock::now()});
    if (is_first()) return count(0, hash);
    Message message;
    message.name = hash;
    send(0, message);
  });
}

void NameOrder::join() {
  guarded([&] {
    if (failure_ || size() == 1) return;
    if (!has_begun_) begin();
    if (is_first()) return on_joined(0);
    Message message;
    message.kind = Kind::kJoined;
    send(0, message);
  });
}

void NameOrder::begin() {
  has_begun_ = true;
  if (size() == 1) return;
  if (is_first()) {
    for (int peer = 1; peer < static_cast<int>(size()); ++peer) receive(peer);
  } else {
    receive(0);
  }
  watcher_ = std::thread([this] { watch(); });
}

void NameOrder::receive(int peer) {
  const std::shared_ptr<Engine> engine = settings_.engine.lock();
  if (!engine || !engine->is_running()) return;
  const auto message = std::make_shared<Message>();
  Operation operation;
  operation.kind = Collective::kReceive;
  operation.peer = peer;
  operation.timeout = kAlways;
  operation.outputs = {{message.get(), sizeof *message}};
  operation.done = [weak = weak_from_this(), message, peer](const std::exception_ptr& error) {
    const std::shared_ptr<NameOrder> self = weak.lock();
    if (!self) return;
    self->guarded([&] {
      if (error) return self->fail_all(error);
      self->handle(peer, *message);
      self->receive(peer);
    });
  };
  engine->submit(settings_.group, std::move(operation));
}

void NameOrder::send(int peer, const Message& message) {
  const std::shared_ptr<Engine> engine = settings_.engine.lock();
  if (!engine) return;
  const auto sent = std::make_shared<Message>(message);
  Operation operation;
  operation.kind = Collective::kSend;
  operation.peer = peer;
  operation.timeout = kAlways;
  operation.inputs = {{sent.get(), sizeof *sent}};
  ++num_unsent_;
  operation.done = [weak = weak_from_this(), sent](const std::exception_ptr& error) {
    const std::shared_ptr<NameOrder> self = weak.lock();
    if (!self) return;
    self->guarded([&] {
      --self->num_unsent_;
      if (error) self->fail_all(error);
    });
  };
  engine->submit(settings_.group, std::move(operation));
}

void NameOrder::handle(int peer, const Message& message) {
  switch (message.kind) {
    case Kind::kBrought:
      return count(peer, message.name);
    case Kind::kStart:
      return start(message.name);
    case Kind::kJoined:
      return on_joined(peer);
    case Kind::kLate:
      if (const auto found = waiting_.find(message.name); found != waiting_.end()) {
        for (Brought& each : found->second) tell(each, text_of(message));
      }
      return;
  }
}

void NameOrder::count(int rank, uint64_t name) {
  Count& count = counts_[name];
  if (count.brought.empty()) {
    count.brought.resize(size());
    count.since = Clock::now();
  }
  ++count.brought[static_cast<size_t>(rank)];
  start_complete(name);
}

// Starts an operation of this name if all ranks have brought it, but for those that have joined.
void NameOrder::start_complete(uint64_t name) {
  Count& count = counts_[name];
  for (size_t rank = 0; rank < size(); ++rank) {
    if (count.brought[rank] == 0 && !has_joined(rank)) return;
  }
  for (uint32_t& each : count.brought) each -= each > 0 ? 1 : 0;
  count.since = Clock::now();
  count.is_told = false;
  const auto is_zero = [](uint32_t each) { return each == 0; };
  if (std::all_of(count.brought.begin(), count.brought.end(), is_zero)) counts_.erase(name);
  Message message;
  message.kind = Kind::kStart;
  message.name = name;
  for (int peer = 1; peer < static_cast<int>(size()); ++peer) send(peer, message);
  start(name);
}

// Records that a rank has joined, and starts what the others have brought. If all have, none has.
void NameOrder::on_joined(int rank) {
  joined_.resize(size());
  ++joined_[static_cast<size_t>(rank)];
  if (std::all_of(joined_.begin(), joined_.end(), [](uint32_t each) { return each > 0; })) {
    for (uint32_t& each : joined_) --each;
    return;
  }
  std::vector<std::pair<uint64_t, uint32_t>> names;  // and how often they can start at most
  for (const auto& [name, count] : counts_) {
    names.emplace_back(name, *std::max_element(count.brought.begin(), count.brought.end()));
  }
  for (const auto& [name, most] : names) {
    for (uint32_t i = 0; i < most && counts_.count(name) > 0; ++i) start_complete(name);
  }
}

void NameOrder::start(uint64_t name) {
  const auto found = waiting_.find(name);
  if (found == waiting_.end()) return;
  const Brought brought = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) waiting_.erase(found);
  try {
    brought.start();
  } catch (...) {
    fail_later(brought.fail, std::current_exception());
  }
}

void NameOrder::fail_all(const std::exception_ptr& error) {
  if (!failure_) failure_ = error;
  for (const auto& [hash, queue] : std::exchange(waiting_, {})) {
    for (const Brought& each : queue) fail_later(each.fail, failure_);
  }
}

void NameOrder::fail_later(const Fail& fail, const std::exception_ptr& error) {
  failing_.push_back([fail, error] { fail(error); });
}

// Looks for names that wait too long, until this object is destroyed.
void NameOrder::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, settings_.late_after / 10, [this] { return is_ending_; })) {
    lock.unlock();
    guarded([this] { look(Clock::now()); });  // the engine may be shut down meanwhile
    lock.lock();
  }
}

void NameOrder::look(Clock::time_point now) {
  if (failure_) return;
  look_at_counts(now);
  for (auto& [hash, queue] : waiting_) {
    for (Brought& each : queue) {
      // The first rank has not taken what this rank has brought, so it uses no names.
      const bool is_first_late = !is_first() && num_unsent_ > 0;
      if (is_first_late && now - each.since >= settings_.late_after) {
        tell(each, "rank " + std::to_string(settings_.members[0]));
      }
      if (now - each.since < settings_.timeout) continue;
      const std::shared_ptr<Engine> engine = settings_.engine.lock();
      if (!engine) return;
      return engine->abort(
          "the operation named '" + each.name + "' was not called on all ranks" + " within " +
          std::to_string(duration_cast<seconds>(settings_.timeout).count()) + " s");
    }
  }
}

// Tells the ranks that have brought a name which ranks have not.
void NameOrder::look_at_counts(Clock::time_point now) {
  for (auto& [name, count] : counts_) {
    if (count.is_told || now - count.since < settings_.late_after) continue;
    count.is_told = true;
    Message message;
    message.kind = Kind::kLate;
    message.name = name;
    for (size_t rank = 0; rank < size(); ++rank) {
      if (count.brought[rank] > 0 || has_joined(rank)) continue;
      if (message.num_missing < Message::kMaxMissing) {
        message.missing[message.num_missing] = static_cast<uint64_t>(settings_.members[rank]);
      }
      ++message.num_missing;
    }
    for (size_t rank = 1; rank < size(); ++rank) {
      if (count.brought[rank] > 0) send(static_cast<int>(rank), message);
    }
    if (count.brought[0] > 0) handle(0, message);
  }
}

void NameOrder::tell(Brought& brought, const std::string& ranks) {
  if (brought.is_told) return;
  brought.is_told = true;
  const auto waited = duration_cast<seconds>(Clock::now() - brought.since).count();
  settings_.log("rank " + std::to_string(settings_.members[static_cast<size_t>(settings_.rank)]) +
                " has called the operation named '" + brought.name + "' " + std::to_string(waited) +
                " s ago, but these have not: " + ranks);
}

std::string NameOrder::text_of(const Message& message) const {
  std::string text;
  const uint64_t shown = std::min<uint64_t>(message.num_missing, Message::kMaxMissing);
  for (uint64_t i = 0; i < shown; ++i) {
    text += (i == 0 ? "rank " : ", rank ") + std::to_string(message.missing[i]);
  }
  if (message.num_missing > shown) {
    text += " and " + std::to_string(message.num_missing - shown) + " more";
  }
  return text;
}

}  // namespace smdist
