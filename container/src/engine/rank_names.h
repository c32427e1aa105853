// SPDX-License-Identifier: Apache-2.0
// Names of ranks in error messages.
#pragma once

#include <string>
#include <vector>

#include "smdist/options.h"

namespace smdist {

// Names of all ranks of the engine, such as "rank 3 on algo-2".
//
// Thread safety: constant after construction.
class RankNames final {
 public:
  explicit RankNames(const Options& options) : own_rank_(options.rank), names_(options.names) {
    for (size_t rank = names_.size(); rank < static_cast<size_t>(options.size); ++rank) {
      names_.push_back("rank " + std::to_string(rank));
    }
  }

  int own_rank() const { return own_rank_; }
  const std::string& own() const { return of(own_rank_); }
  const std::string& of(int rank) const { return names_[static_cast<size_t>(rank)]; }

 private:
  const int own_rank_;
  std::vector<std::string> names_;
};

}  // namespace smdist
