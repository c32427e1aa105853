// SPDX-License-Identifier: Apache-2.0
#include "transport/memory_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "smdist/errors.h"

namespace smdist {

// Transport of one rank. Queues messages until the next poll(), like a socket that is always ready.
//
// Thread safety: as Transport.
class MemoryTransport final : public Transport {
 public:
  MemoryTransport(std::shared_ptr<MemoryHub> hub, int rank, int size)
      : hub_(std::move(hub)),
        rank_(rank),
        is_lost_(static_cast<size_t>(size), false),
        is_connected_(is_lost_) {
    is_lost_[static_cast<size_t>(rank)] = true;  // a rank receives nothing from itself
  }
  ~MemoryTransport() override { hub_->leave(rank_); }

  Endpoint endpoint() const override { return {"memory", static_cast<uint16_t>(rank_)}; }
  void start(const std::vector<Endpoint>&, Sink* sink) override { sink_ = sink; }
  void send(int peer, Message message) override { queue_.emplace_back(peer, std::move(message)); }
  void release_payloads(const HeaderFilter& is_chosen) override;
  void poll(std::chrono::milliseconds timeout) override;
  void await(std::chrono::milliseconds timeout, SpinPolicy&) override;
  std::chrono::milliseconds max_await(std::chrono::milliseconds timeout) const override {
    return queue_.empty() ? timeout : std::chrono::milliseconds(0);
  }
  bool is_quiet() const override { return queue_.empty(); }
  void wake() override { hub_->wake(rank_); }
  void clear_wake() override { hub_->clear_wake(rank_); }
  Span own_arena() override { return hub_->arena(rank_); }
  bool is_read_by(int peer) override { return hub_->share(rank_, peer); }
  Span arena_of(int peer) override { return hub_->arena(peer); }
  void signal(int peer) override { hub_->signal(peer); }
  void close(std::chrono::milliseconds) override;

 private:
  void mark_connected(int peer);
  void flush();
  void deliver(int from, const MemoryHub::Packet& packet);
  void lose(int peer, const std::string& reason);

  const std::shared_ptr<MemoryHub> hub_;
  const int rank_;
  Sink* sink_ = nullptr;
  std::deque<std::pair<int, Message>> queue_;
  std::vector<bool> is_lost_;
  std::vector<bool> is_connected_;
};

void MemoryTransport::release_payloads(const HeaderFilter& is_chosen) {
  const auto is_dropped = [&](const std::pair<int, Message>& each) {
    return each.second.payload.bytes > 0 && is_chosen(each.first, each.second.header);
  };
  queue_.erase(std::remove_if(queue_.begin(), queue_.end(), is_dropped), queue_.end());
}

void MemoryTransport::poll(std::chrono::milliseconds timeout) {
  hub_->take_signals(rank_);
  flush();
  if (timeout.count() > 0) hub_->await(rank_, std::chrono::steady_clock::now() + timeout);
  for (int turn = 0; turn < 64; ++turn) {
    int from = 0;
    MemoryHub::Packet packet;
    switch (hub_->next(rank_, &from, &packet)) {
      case MemoryHub::Event::kNothing:
        return;
      case MemoryHub::Event::kPacket:
        deliver(from, packet);
        break;
      case MemoryHub::Event::kLoss:
        lose(from, "closed its connection");
        break;
    }
    flush();
  }
}

void MemoryTransport::await(std::chrono::milliseconds timeout, SpinPolicy&) {
  hub_->await(rank_, std::chrono::steady_clock::now() + timeout);
}

void MemoryTransport::close(std::chrono::milliseconds) {
  sink_ = nullptr;
  flush();
  hub_->leave(rank_);
}

void MemoryTransport::mark_connected(int peer) {
  if (is_connected_[static_cast<size_t>(peer)]) return;
  is_connected_[static_cast<size_t>(peer)] = true;
  if (sink_ != nullptr) sink_->on_connected(peer);
}

void MemoryTransport::flush() {
  while (!queue_.empty()) {
    auto [peer, message] = std::move(queue_.front());
    queue_.pop_front();
    if (is_lost_[static_cast<size_t>(peer)]) continue;
    mark_connected(peer);
    const uint64_t token = message.token;
    hub_->post(rank_, peer, std::move(message));
    if (token != 0 && sink_ != nullptr) sink_->on_sent(peer, token);
  }
}

void MemoryTransport::deliver(int from, const MemoryHub::Packet& packet) {
  mark_connected(from);
  try {
    const Span place = sink_->on_header(from, packet.header);
    if (place.bytes != packet.payload.size())
      throw PeerError("sent a payload of " + std::to_string(packet.payload.size()) +
                      " bytes instead of " + std::to_string(place.bytes));
    if (place.data != nullptr && place.bytes > 0) {
      std::memcpy(place.data, packet.payload.data(), place.bytes);
    }
    sink_->on_message(from, packet.header);
  } catch (const PeerError& error) {
    hub_->cut(rank_, from);
    lose(from, error.what());
  }
}

void MemoryTransport::lose(int peer, const std::string& reason) {
  is_lost_[static_cast<size_t>(peer)] = true;
  hub_->mark_lost(rank_, peer);
  sink_->on_peer_lost(peer, reason);
}

// ------------------------------------------------------------------------- hub

MemoryHub::MemoryHub(int size)
    : size_(size), channels_(static_cast<size_t>(size * size)), ranks_(static_cast<size_t>(size)) {
  MutexLock lock(mutex_);
  for (int rank = 0; rank < size; ++rank) {
    std::vector<bool>& known_lost = ranks_[static_cast<size_t>(rank)].known_lost;
    known_lost.assign(static_cast<size_t>(size), false);
    known_lost[static_cast<size_t>(rank)] = true;  // a rank receives nothing from itself
  }
}

std::unique_ptr<Transport> MemoryHub::transport(int rank) {
  return std::make_unique<MemoryTransport>(shared_from_this(), rank, size_);
}

void MemoryHub::share_memory(size_t bytes, const std::vector<int>& hosts) {
  hosts_ = hosts;
  arenas_.assign(static_cast<size_t>(size_), std::vector<uint8_t>(bytes));
}

bool MemoryHub::share(int a, int b) const {
  const auto host_of = [this](int rank) { return hosts_[static_cast<size_t>(rank)]; };
  return !arenas_.empty() && (hosts_.empty() || host_of(a) == host_of(b));
}

Span MemoryHub::arena(int rank) {
  if (arenas_.empty()) return {};
  std::vector<uint8_t>& arena = arenas_[static_cast<size_t>(rank)];
  return {arena.data(), arena.size()};
}

void MemoryHub::delay(std::chrono::microseconds longest, uint32_t seed) {
  MutexLock lock(mutex_);
  longest_delay_ = longest;
  random_.seed(seed);
}

void MemoryHub::kill(int rank) {
  MutexLock lock(mutex_);
  for (int other = 0; other < size_; ++other) {
    if (other != rank) separate(rank, other);
  }
}

void MemoryHub::cut(int a, int b) {
  MutexLock lock(mutex_);
  separate(a, b);
}

// Breaks all connections of a rank that leaves. Its messages in flight still arrive.
void MemoryHub::leave(int rank) { kill(rank); }

void MemoryHub::separate(int a, int b) {
  channel(a, b).is_cut = true;
  channel(b, a).is_cut = true;
  ranks_[static_cast<size_t>(a)].changed.notify_all();
  ranks_[static_cast<size_t>(b)].changed.notify_all();
}

MemoryHub::Channel& MemoryHub::channel(int from, int to) {
  return channels_[static_cast<size_t>(from * size_ + to)];
}

void MemoryHub::post(int from, int to, Message message) {
  const auto* data = static_cast<const uint8_t*>(message.payload.data);
  Packet packet{message.header, {message.text.begin(), message.text.end()}, Clock::now()};
  if (message.payload.bytes > 0) packet.payload.assign(data, data + message.payload.bytes);
  MutexLock lock(mutex_);
  Channel& link = channel(from, to);
  if (link.is_cut) return;
  if (longest_delay_.count() > 0) {
    std::uniform_int_distribution<int64_t> microseconds(0, longest_delay_.count());
    packet.due += std::chrono::microseconds(microseconds(random_));
  }
  if (!link.packets.empty()) packet.due = std::max(packet.due, link.packets.back().due);
  link.packets.push_back(std::move(packet));
  ranks_[static_cast<size_t>(to)].changed.notify_all();
}

void MemoryHub::wake(int rank) {
  MutexLock lock(mutex_);
  ranks_[static_cast<size_t>(rank)].is_woken = true;
  ranks_[static_cast<size_t>(rank)].changed.notify_all();
}

void MemoryHub::clear_wake(int rank) {
  MutexLock lock(mutex_);
  ranks_[static_cast<size_t>(rank)].is_woken = false;
}

void MemoryHub::signal(int rank) {
  MutexLock lock(mutex_);
  ranks_[static_cast<size_t>(rank)].is_signalled = true;
  ranks_[static_cast<size_t>(rank)].changed.notify_all();
}

void MemoryHub::take_signals(int rank) {
  MutexLock lock(mutex_);
  ranks_[static_cast<size_t>(rank)].is_signalled = false;
}

void MemoryHub::mark_lost(int rank, int peer) {
  MutexLock lock(mutex_);
  ranks_[static_cast<size_t>(rank)].known_lost[static_cast<size_t>(peer)] = true;
}

void MemoryHub::await(int rank, Clock::time_point until) {
  MutexLock lock(mutex_);
  Rank& self = ranks_[static_cast<size_t>(rank)];
  while (!self.is_woken && !self.is_signalled && Clock::now() < until) {
    Clock::time_point wake_up = until;
    int from = 0;
    if (look(rank, &from, &wake_up) != Event::kNothing) return;
    self.changed.wait_until(mutex_, wake_up);
  }
}

MemoryHub::Event MemoryHub::next(int rank, int* from, Packet* packet) {
  MutexLock lock(mutex_);
  Clock::time_point wake_up;
  const Event news = look(rank, from, &wake_up);
  if (news != Event::kPacket) return news;
  Channel& link = channel(*from, rank);
  *packet = std::move(link.packets.front());
  link.packets.pop_front();
  return news;
}

MemoryHub::Event MemoryHub::look(int rank, int* from, Clock::time_point* wake_up) {
  const Clock::time_point now = Clock::now();
  const std::vector<bool>& known_lost = ranks_[static_cast<size_t>(rank)].known_lost;
  for (int other = 0; other < size_; ++other) {
    const Channel& link = channel(other, rank);
    if (known_lost[static_cast<size_t>(other)]) continue;
    *from = other;
    if (link.packets.empty() && link.is_cut) return Event::kLoss;
    if (link.packets.empty()) continue;
    if (link.packets.front().due <= now) return Event::kPacket;
    *wake_up = std::min(*wake_up, link.packets.front().due);
  }
  return Event::kNothing;
}

}  // namespace smdist
