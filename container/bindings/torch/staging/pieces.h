// SPDX-License-Identifier: Apache-2.0
// Division of an operation on device tensors into pieces that each fit into one slot.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "copy_streams.h"
#include "smdist/engine.h"

namespace smdist::torch_binding {

// Operation on tensors of one device, as the caller has described it.
struct DeviceOperation {
  uint32_t group = 0;
  int rank = 0;
  int size = 1;
  Operation operation;              // without buffers and callbacks
  std::vector<at::Tensor> inputs;   // contiguous
  std::vector<at::Tensor> outputs;  // contiguous
};

// One operation of the engine on a slot: copies before it, its buffers in the slot, copies after.
struct Piece {
  std::vector<Copy> to_host;
  std::vector<Span> inputs;
  std::vector<Span> outputs;
  std::vector<Copy> to_device;
};

// Divides an operation into pieces, so that copies, sums and messages of different pieces overlap.
//
// The length of an operation, the number of ranks and the size of a slot decide how it is divided,
// and every rank has the same of these. A piece has the same elements of each rank's part, so sums
// have the same bits as those of the undivided operation. all_to_all, send and receive are not
// divided, because ranks do not know the lengths of other ranks' buffers.
//
// Thread safety: const methods may be called from any thread.
class Pieces final {
 public:
  Pieces(DeviceOperation operation, size_t slot_bytes);

  const DeviceOperation& operation() const { return operation_; }
  size_t count() const { return count_; }
  bool is_divided() const { return shape_ != Shape::kUndivided; }
  // Return the number of bytes of host memory that a piece needs.
  size_t bytes_of(size_t index) const;
  // Return whether this rank's outputs are written.
  bool receives() const;
  // Return a piece. slot: at least bytes_of(index) bytes of pinned memory.
  Piece piece(size_t index, const at::Tensor& slot) const;

 private:
  enum class Shape { kEqual, kGathered, kScattered, kUndivided };
  struct Range {
    int64_t begin;
    int64_t length;
  };

  static Shape shape_of(Collective kind);
  Range range_of(size_t index) const;
  bool sends() const;
  Piece equal(const Range& range, const at::Tensor& slot) const;
  Piece gathered(const Range& range, const at::Tensor& slot) const;
  Piece scattered(const Range& range, const at::Tensor& slot) const;
  Piece undivided(const at::Tensor& slot) const;
  at::Tensor part(const std::vector<at::Tensor>& parts, int rank, const Range& range) const;

  DeviceOperation operation_;
  const Shape shape_;
  std::vector<at::Tensor> inputs_;   // as bytes
  std::vector<at::Tensor> outputs_;  // as bytes
  int64_t part_bytes_ = 0;           // length of one rank's part
  int64_t chunk_bytes_ = 0;          // length of the share of a piece in one rank's part
  size_t count_ = 1;
};

}  // namespace smdist::torch_binding
