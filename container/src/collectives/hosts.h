// SPDX-License-Identifier: Apache-2.0
// Which ranks of a group share a host.
#pragma once

#include <cstddef>
#include <vector>

namespace smdist {

// Ranks of one host combine before the wire, and what comes over the wire comes
// to a host once. Towards every rank elsewhere a host is represented by one of its
// own, the *deputy*; ranks of other hosts share the deputies' work evenly.
//
// Where no host has two ranks, or one host has all, there is nothing to combine,
// and all ranks count as one host.
class Hosts final {
 public:
  // host_of: by rank in the group, any numbers, equal for ranks that share a host.
  explicit Hosts(const std::vector<int>& host_of);
  // All on one host.
  explicit Hosts(int size) : Hosts(std::vector<int>(static_cast<size_t>(size), 0)) {}

  int size() const { return static_cast<int>(host_of_.size()); }
  // Hosts are numbered by their lowest rank.
  int count() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  const std::vector<int>& ranks_on(int host) const { return ranks_[static_cast<size_t>(host)]; }

  // Who represents a host towards a rank: that rank itself on its own host.
  int deputy(int host, int towards) const;

  // Whether a rank hears from another directly: as its neighbour, or as deputy.
  bool is_direct(int from, int to) const {
    return deputy(host_of(to), from) == to || shares(from, to);
  }
  bool shares(int a, int b) const { return host_of(a) == host_of(b); }

 private:
  std::vector<int> host_of_;
  std::vector<int> seat_;  // by rank: its place among the ranks of its host
  std::vector<std::vector<int>> ranks_;
};

}  // namespace smdist
