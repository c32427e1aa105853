// SPDX-License-Identifier: Apache-2.0
// Buffers of a collective in two levels: within a host, and between hosts.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "../tensors.h"
#include "smdist/collective.h"

namespace smdist::torch_binding {

// Place of a rank in a group with the same number of ranks on each of its hosts. The ranks of a
// host follow each other: rank = host * local_size + local_rank.
struct HostLayout {
  int num_hosts = 1;
  int local_size = 1;
  int host = 0;
  int local_rank = 0;
};

// One collective on the tensors of a device, as the caller has described it.
struct DeviceCall {
  Collective kind = Collective::kAllReduce;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  Reduction reduction{ReduceOp::kSum, 1};
  std::chrono::milliseconds timeout{};
};

// Reduce operations of the two levels.
struct LevelOps {
  c10d::ReduceOp within_host;
  c10d::ReduceOp between_hosts;
};

// Return the number of bytes of the longest buffer of a call.
int64_t bytes_of(const DeviceCall& call);

// Return the reduce operations of a call, or nothing if NCCL cannot do this kind of operation, or
// cannot reduce with this operation or dtype. The operations of an all-gather have no meaning.
std::optional<LevelOps> level_ops_of(const DeviceCall& call);

// Contiguous buffers of one collective at each level. The device copies nothing for tensors that
// are contiguous and divide equally.
//
//   all_reduce:     within: tensor -> share, between: share -> share, gather: share -> tensor
//   reduce_scatter: within: input -> parts, between: parts -> output
//   all_gather:     between: input -> parts, gather: parts -> output
//
// "Share" is one of local_size equal parts of the tensor. "Parts" are those of the ranks that have
// this local rank, one on each host: an all-reduce has one pair of buffers within the host, the
// others have one for each host. With a single host nothing goes between hosts. A piece of an
// all-gather is gathered in a buffer of its own and copied back, since its ranges lie apart in the
// output.
struct LevelBuffers {
  struct Pair {
    at::Tensor input;
    at::Tensor output;
  };
  std::vector<Pair> reduce_scatters;  // within the host, first
  std::optional<Pair> between_hosts;
  std::vector<Pair> all_gathers;  // within the host, last
  std::vector<Pair> copies_back;  // to where the device gathers nothing, in this order
};

// Return the number of pieces of a call, whose levels overlap: an all-reduce or an all-gather is
// divided into pieces of at most piece_bytes, of the longer buffer.
//
// A reduce-scatter is not divided. The first level of a piece would read a range of each rank's
// part, and these lie apart in the input. The device copies all of them before the first level of
// the first piece has run, so they take as much memory again as the input; and a stream that waits
// for a first level, to use the memory again, could hold up a last one. Pieces that are whole parts
// are contiguous, but then all hosts send to one at a time. The levels of one call overlap with
// those of the next.
size_t num_pieces(const DeviceCall& call, const HostLayout& layout, int64_t piece_bytes);

// Return the buffers of each piece of a call. Allocates and fills temporary ones on the current
// stream. Never reads beyond the end of a tensor: one that does not divide equally is copied to a
// longer one. Results are copied back with the last piece.
std::vector<LevelBuffers> level_buffers_of(const DeviceCall& call, const HostLayout& layout,
                                           int64_t piece_bytes);

}  // namespace smdist::torch_binding
