// SPDX-License-Identifier: Apache-2.0
// Decision of the ranks of a group between two levels and staging.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "level_buffers.h"

namespace smdist::torch_binding {

// Communicators that the ranks of a group have made for two levels.
struct LevelDecision {
  HostLayout layout;
  uint32_t host_group;     // number in the engine: the ranks of this host
  uint32_t between_group;  // number in the engine: the ranks with this local rank on all hosts
  c10::intrusive_ptr<c10d::Backend> host_reduce;
  c10::intrusive_ptr<c10d::Backend> host_gather;
};

// Exchange of a text of at most kExchangedBytes bytes: returns the texts of all ranks of the group.
using ExchangeTexts = std::function<std::vector<std::string>(const std::string&)>;
constexpr int64_t kExchangedBytes = 1024;

// Function that decides for a rank and its device, and returns nothing if tensors are staged. All
// ranks call it together, and all of them return something or none does. May raise an error of
// Python.
using DecideLevels = std::function<std::optional<LevelDecision>(c10::Device, const ExchangeTexts&)>;

struct LevelOptions {
  DecideLevels decide;  // empty: all tensors are staged
  // Minimum length of the buffers of a call that takes two levels.
  int64_t smallest_bytes = int64_t{64} << 10;
  // Maximum length of a piece of an all-reduce. Must be the same on all ranks.
  int64_t piece_bytes = int64_t{16} << 20;
};

}  // namespace smdist::torch_binding
