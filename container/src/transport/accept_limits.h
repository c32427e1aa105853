// SPDX-License-Identifier: Apache-2.0
// Limits of the accepted connections that have not proved to belong to the job.
//
// Every process that reaches the port of a rank can connect to it, and no time limit tells a
// stranger from a rank on a busy machine. So connections are counted by their source address. The
// addresses of ranks have places for every connection that these ranks can open, so that no rank of
// a job is ever turned away because of strangers elsewhere, or of other ranks. All other addresses
// share a few places. If a place is missing, the connection of this address that has waited longest
// loses its place: a stranger that shares the address of a rank can cost the rank an attempt, but
// the rank dials again, and needs its place only until its proof.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "smdist/options.h"

namespace smdist {

// Source of connections over this host's Unix socket, which have no address.
constexpr const char* kUnixSource = "unix";

// Stores the numbers of the accepted connections without a proof, by source address.
//
// Thread safety: none.
class AcceptLimits final {
 public:
  // Set the addresses of all ranks; `options` are those of this rank.
  void set_ranks(const std::vector<Endpoint>& ranks, const Options& options);

  // Give a place to a connection from this address; connections have ascending numbers. Returns the
  // number of the connection that loses its place for it, if there is one.
  std::optional<uint64_t> enter(uint64_t connection, const std::string& address);
  // Give back the place of a connection; does nothing if it has none.
  void leave(uint64_t connection);
  // Return the connection that has waited longest, those from strangers first; none if there is
  // none.
  std::optional<uint64_t> oldest() const;

  // Return whether a rank of the job has this address.
  bool is_known(const std::string& address) const { return places_.count(address) > 0; }
  // Return the number of places of the address.
  size_t places(const std::string& address) const;

 private:
  // Returns the key under which connections of the address are counted.
  std::string key(const std::string& address) const { return is_known(address) ? address : ""; }

  std::map<std::string, size_t> places_;                 // places of each address of a rank
  std::map<std::string, std::set<uint64_t>> by_source_;  // connections by key; "": strangers
  std::map<uint64_t, std::string> sources_;              // key of each connection
};

}  // namespace smdist
