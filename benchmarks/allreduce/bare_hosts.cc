// SPDX-License-Identifier: Apache-2.0
// An all-reduce of float32 across hosts that is nothing but its bytes on TCP and its sums: what
// the kernel leaves to any that sends equal shards straight to their owners. No failure is
// handled, nothing else may happen meanwhile, and sizes are not checked. See README.md.
//
// Each rank sends every other one that one's shard of the buffer, sums its own as the shares of
// others come, and sends the sum after the shard. So many bytes may be on their way to a rank as
// smdist allows.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr size_t kChunkBytes = 256 << 10;
constexpr size_t kSliceBytes = 16 << 10;  // is summed at once
constexpr uint16_t kPort = 29701;

void require(bool holds, const char* what) {
  if (holds) return;
  std::perror(what);
  std::abort();
}

sockaddr_in address_of(const char* host) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  require(::inet_pton(AF_INET, host, &address.sin_addr) == 1, host);
  return address;
}

struct Peer {
  int fd = -1;
  size_t sent = 0;  // of this all-reduce: first its share, then our sum
  size_t got = 0;   // first its share of our shard, then its sum
  std::vector<std::byte> share;
};

class Bare {
 public:
  Bare(const char* const* hosts, size_t rank, size_t ranks, size_t arriving_bytes)
      : rank_(rank), arriving_bytes_(arriving_bytes), peers_(ranks) {
    const int listener = listen_at(address_of(hosts[rank]));
    for (size_t peer = 0; peer < rank; ++peer) dial(peer, address_of(hosts[peer]));
    for (size_t peer = rank + 1; peer < ranks; ++peer) accept_from(listener);
    ::close(listener);
  }

  void sum(float* data, size_t count) {
    data_ = reinterpret_cast<std::byte*>(data);
    shard_bytes_ = count / peers_.size() * sizeof(float);
    summed_ = 0;
    for (Peer& peer : peers_) {
      peer.sent = peer.got = 0;
      peer.share.resize(shard_bytes_);
    }
    while (move_some()) add();
  }

 private:
  // 0: as the kernel makes them.
  int open_socket() const {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const auto room = static_cast<int>(arriving_bytes_ / (peers_.size() - 1));
    if (room > 0) ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    return fd;
  }

  int listen_at(const sockaddr_in& address) const {
    const int fd = open_socket();
    const int yes = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const auto* at = reinterpret_cast<const sockaddr*>(&address);
    require(::bind(fd, at, sizeof address) == 0 && ::listen(fd, 64) == 0, "listening");
    return fd;
  }

  // Who is not there yet is called again.
  void dial(size_t peer, const sockaddr_in& address) {
    const auto* at = reinterpret_cast<const sockaddr*>(&address);
    while (true) {
      const int fd = open_socket();
      if (::connect(fd, at, sizeof address) == 0) {
        const auto name = static_cast<uint8_t>(rank_);
        require(::send(fd, &name, 1, 0) == 1, "greeting");
        return attach(peer, fd);
      }
      ::close(fd);
      ::usleep(10'000);
    }
  }

  void accept_from(int listener) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    uint8_t name = 0;
    require(fd >= 0 && ::recv(fd, &name, 1, 0) == 1, "being greeted");
    attach(name, fd);
  }

  void attach(size_t peer, int fd) {
    const int yes = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    peers_[peer].fd = fd;
  }

  // False: nothing is left to move.
  bool move_some() {
    std::vector<pollfd> sockets;
    std::vector<size_t> numbers;
    bool is_left = false;
    for (size_t step = 1; step < peers_.size(); ++step) {
      const size_t number = (rank_ + step) % peers_.size();
      const Peer& peer = peers_[number];
      const bool has_more = peer.got < 2 * shard_bytes_;
      const bool may_send = peer.sent < shard_bytes_ + summed_;
      is_left = is_left || has_more || peer.sent < 2 * shard_bytes_;
      const int events = (has_more ? POLLIN : 0) | (may_send ? POLLOUT : 0);
      sockets.push_back({peer.fd, static_cast<short>(events), 0});
      numbers.push_back(number);
    }
    if (!is_left) return false;
    require(::poll(sockets.data(), sockets.size(), -1) > 0, "waiting");
    for (size_t i = 0; i < sockets.size(); ++i) {
      if ((sockets[i].revents & POLLOUT) != 0) send_to(numbers[i]);
      if ((sockets[i].revents & ~POLLOUT) != 0) receive_from(numbers[i]);
    }
    return true;
  }

  void send_to(size_t number) {
    Peer& peer = peers_[number];
    const bool is_share = peer.sent < shard_bytes_;
    const std::byte* from = is_share ? data_ + number * shard_bytes_ + peer.sent
                                     : data_ + rank_ * shard_bytes_ + peer.sent - shard_bytes_;
    const size_t ready = (is_share ? shard_bytes_ : shard_bytes_ + summed_) - peer.sent;
    const ssize_t sent = ::send(peer.fd, from, std::min(ready, kChunkBytes), MSG_DONTWAIT);
    require(sent > 0 || errno == EAGAIN, "sending");
    if (sent > 0) peer.sent += static_cast<size_t>(sent);
  }

  void receive_from(size_t number) {
    Peer& peer = peers_[number];
    const bool is_share = peer.got < shard_bytes_;
    std::byte* to = is_share ? peer.share.data() + peer.got
                             : data_ + number * shard_bytes_ + peer.got - shard_bytes_;
    const size_t missing = (is_share ? 1 : 2) * shard_bytes_ - peer.got;
    const ssize_t got = ::recv(peer.fd, to, missing, MSG_DONTWAIT);
    require(got > 0 || (got < 0 && errno == EAGAIN), "receiving");
    if (got > 0) peer.got += static_cast<size_t>(got);
  }

  void add() {
    size_t ready = shard_bytes_;
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (i != rank_) ready = std::min(ready, peers_[i].got);
    }
    while (summed_ < ready && (ready == shard_bytes_ || ready - summed_ >= kSliceBytes)) {
      add_slice(std::min(kSliceBytes, ready - summed_));
    }
  }

  void add_slice(size_t bytes) {
    auto* total = reinterpret_cast<float*>(data_ + rank_ * shard_bytes_ + summed_);
    for (size_t step = 1; step < peers_.size(); ++step) {
      const Peer& peer = peers_[(rank_ + step) % peers_.size()];
      const auto* share = reinterpret_cast<const float*>(peer.share.data() + summed_);
      for (size_t i = 0; i < bytes / sizeof(float); ++i) total[i] += share[i];
    }
    summed_ += bytes;
  }

  const size_t rank_;
  const size_t arriving_bytes_;
  std::vector<Peer> peers_;
  std::byte* data_ = nullptr;
  size_t shard_bytes_ = 0;
  size_t summed_ = 0;  // bytes of our shard
};

}  // namespace

// The numeric addresses of all ranks, in order. Returns when all are connected.
extern "C" void* bare_connect(const char* const* hosts, uint64_t rank, uint64_t ranks,
                              uint64_t arriving_bytes) {
  return new Bare(hosts, rank, ranks, arriving_bytes);
}

extern "C" void bare_sum_hosts(void* bare, float* data, uint64_t count) {
  static_cast<Bare*>(bare)->sum(data, count);
}
