// SPDX-License-Identifier: Apache-2.0
#include "transport/accept_limits.h"

#include <algorithm>

#include "smdist/tuning.h"

namespace smdist {
namespace {

constexpr size_t kStrangers = 64;     // places of all addresses that no rank has
constexpr size_t kFewestPlaces = 64;  // places of an address with few ranks

}  // namespace

// Gives each rank one place for each lane, and one for the connection with which it checks whether
// this rank still listens.
void AcceptLimits::set_ranks(const std::vector<Endpoint>& ranks, const Options& options) {
  places_.clear();
  for (const Endpoint& each : ranks) places_[each.host] += options.max_lanes + 1;
  places_[kUnixSource] = ranks.size();
  for (auto& [address, places] : places_) places = std::max(places, kFewestPlaces);
}

std::optional<uint64_t> AcceptLimits::enter(uint64_t connection, const std::string& address) {
  std::set<uint64_t>& present = by_source_[key(address)];
  present.insert(connection);
  sources_[connection] = key(address);
  if (present.size() <= places(address)) return std::nullopt;
  return *present.begin();
}

void AcceptLimits::leave(uint64_t connection) {
  const auto found = sources_.find(connection);
  if (found == sources_.end()) return;
  by_source_[found->second].erase(connection);
  sources_.erase(found);
}

std::optional<uint64_t> AcceptLimits::oldest() const {
  const auto strangers = by_source_.find("");
  if (strangers != by_source_.end() && !strangers->second.empty()) {
    return *strangers->second.begin();
  }
  if (sources_.empty()) return std::nullopt;
  return sources_.begin()->first;
}

size_t AcceptLimits::places(const std::string& address) const {
  const auto found = places_.find(address);
  return found == places_.end() ? kStrangers : found->second;
}

}  // namespace smdist
