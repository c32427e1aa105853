// SPDX-License-Identifier: Apache-2.0
// Placement of the ranks of a group on hosts.
#pragma once

#include <cstddef>
#include <vector>

namespace smdist {

// Hierarchical algorithms combine the data of a host's ranks before they cross the network, and
// send data to each host once. For every rank of another host, a host has a *host leader*: the
// one of its ranks that exchanges messages with that rank. Leaders are spread evenly over the
// ranks of a host.
//
// If every host has one rank, or one host has all ranks, there is nothing to combine, and all
// ranks count as one host.
//
// Thread safety: immutable after construction.
class HostTopology final {
 public:
  // host_of: by rank in the group, a number that is equal for ranks of one host.
  explicit HostTopology(const std::vector<int>& host_of);
  // Places all ranks on one host.
  explicit HostTopology(int size) : HostTopology(std::vector<int>(static_cast<size_t>(size), 0)) {}

  int size() const { return static_cast<int>(host_of_.size()); }
  // Number of hosts. They are numbered in the order of their lowest ranks.
  int count() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  const std::vector<int>& ranks_on(int host) const { return ranks_[static_cast<size_t>(host)]; }

  // Returns the leader of a host for messages to and from a rank; on its own host, the rank
  // itself.
  int host_leader(int host, int towards) const;

  // Returns whether a rank receives directly from another: on the same host, or as its host
  // leader.
  bool is_direct(int from, int to) const {
    return host_leader(host_of(to), from) == to || same_host(from, to);
  }
  bool same_host(int a, int b) const { return host_of(a) == host_of(b); }

 private:
  std::vector<int> host_of_;
  std::vector<int> local_index_;  // by rank: its index among the ranks of its host
  std::vector<std::vector<int>> ranks_;
};

}  // namespace smdist
