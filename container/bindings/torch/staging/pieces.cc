// SPDX-License-Identifier: Apache-2.0
#include "pieces.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace smdist::torch_binding {
namespace {

constexpr int64_t kAlignment = 64;  // a cache line, and a multiple of every dtype's size

// Returns the memory of contiguous tensors. A contiguous tensor with one element may have any
// stride.
std::vector<at::Tensor> as_bytes(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& tensor : tensors) {
    bytes.push_back(tensor.detach().as_strided({tensor.numel()}, {1}).view(at::kByte));
  }
  return bytes;
}

int64_t total_bytes(const std::vector<at::Tensor>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0},
                         [](int64_t sum, const at::Tensor& each) { return sum + each.numel(); });
}

Span span(const at::Tensor& bytes) {
  return {bytes.data_ptr(), static_cast<size_t>(bytes.numel())};
}

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.data_ptr() == b.data_ptr();
}

}  // namespace

Pieces::Pieces(DeviceOperation operation, size_t slot_bytes)
    : operation_(std::move(operation)),
      shape_(shape_of(operation_.operation.kind)),
      inputs_(as_bytes(operation_.inputs)),
      outputs_(as_bytes(operation_.outputs)) {
  const int64_t parts = shape_ == Shape::kEqual ? 1 : operation_.size;
  switch (shape_) {
    case Shape::kUndivided:
      return;
    case Shape::kEqual:
      part_bytes_ = total_bytes(inputs_.empty() ? outputs_ : inputs_);
      break;
    case Shape::kGathered:
      part_bytes_ = total_bytes(inputs_);
      break;
    case Shape::kScattered:
      part_bytes_ = total_bytes(outputs_);
      break;
  }
  const int64_t share = static_cast<int64_t>(slot_bytes) / parts / kAlignment * kAlignment;
  chunk_bytes_ = std::max(share, kAlignment);
  count_ = std::max<int64_t>(1, (part_bytes_ + chunk_bytes_ - 1) / chunk_bytes_);
}

Pieces::Shape Pieces::shape_of(Collective kind) {
  switch (kind) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
      return Shape::kEqual;
    case Collective::kAllGather:
    case Collective::kGather:
      return Shape::kGathered;
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return Shape::kScattered;
    case Collective::kAllToAll:
    case Collective::kBarrier:
    case Collective::kSend:
    case Collective::kReceive:
      break;
  }
  return Shape::kUndivided;
}

// Returns whether this rank's inputs are read.
bool Pieces::sends() const {
  const Collective kind = operation_.operation.kind;
  const bool is_of_root = kind == Collective::kBroadcast || kind == Collective::kScatter;
  return !is_of_root || operation_.rank == operation_.operation.root;
}

// Returns whether this rank's outputs are written. The root of a broadcast has the result already.
bool Pieces::receives() const {
  const Collective kind = operation_.operation.kind;
  const bool is_root = operation_.rank == operation_.operation.root;
  if (kind == Collective::kBroadcast) return !is_root;
  if (kind == Collective::kReduce || kind == Collective::kGather) return is_root;
  return true;
}

Pieces::Range Pieces::range_of(size_t index) const {
  const int64_t begin = static_cast<int64_t>(index) * chunk_bytes_;
  return {begin, std::min(chunk_bytes_, part_bytes_ - begin)};
}

size_t Pieces::bytes_of(size_t index) const {
  if (shape_ == Shape::kUndivided) {
    return static_cast<size_t>(total_bytes(inputs_) + total_bytes(outputs_));
  }
  const bool has_all_parts =
      (shape_ == Shape::kGathered && receives()) || (shape_ == Shape::kScattered && sends());
  return static_cast<size_t>(range_of(index).length * (has_all_parts ? operation_.size : 1));
}

Piece Pieces::piece(size_t index, const at::Tensor& slot) const {
  switch (shape_) {
    case Shape::kEqual:
      return equal(range_of(index), slot);
    case Shape::kGathered:
      return gathered(range_of(index), slot);
    case Shape::kScattered:
      return scattered(range_of(index), slot);
    case Shape::kUndivided:
      break;
  }
  return undivided(slot);
}

// Returns a range of one rank's part, of one buffer with all parts or of one buffer per rank.
at::Tensor Pieces::part(const std::vector<at::Tensor>& parts, int rank, const Range& range) const {
  if (parts.size() == 1) return parts[0].narrow(0, rank * part_bytes_ + range.begin, range.length);
  return parts[static_cast<size_t>(rank)].narrow(0, range.begin, range.length);
}

Piece Pieces::equal(const Range& range, const at::Tensor& slot) const {
  const at::Tensor bytes = slot.narrow(0, 0, range.length);
  Piece piece;
  if (sends()) {
    piece.to_host.push_back({bytes, inputs_[0].narrow(0, range.begin, range.length)});
    piece.inputs.push_back(span(bytes));
  }
  if (receives()) {
    piece.to_device.push_back({outputs_[0].narrow(0, range.begin, range.length), bytes});
    piece.outputs.push_back(span(bytes));
  }
  return piece;
}

// This rank's own part is copied within the device, and is not copied back from the host. It is
// copied first, because the input may be where the part of another rank goes.
Piece Pieces::gathered(const Range& range, const at::Tensor& slot) const {
  const at::Tensor input = inputs_[0].narrow(0, range.begin, range.length);
  Piece piece;
  if (!receives()) {
    const at::Tensor bytes = slot.narrow(0, 0, range.length);
    piece.to_host.push_back({bytes, input});
    piece.inputs.push_back(span(bytes));
    return piece;
  }
  for (int rank = 0; rank < operation_.size; ++rank) {
    const at::Tensor bytes = slot.narrow(0, rank * range.length, range.length);
    const at::Tensor output = part(outputs_, rank, range);
    if (rank != operation_.rank) {
      piece.to_device.push_back({output, bytes});
      continue;
    }
    piece.to_host.push_back({bytes, input});
    piece.inputs.push_back(span(bytes));
    if (!is_same_memory(output, input)) {
      piece.to_device.insert(piece.to_device.begin(), {output, input});
    }
  }
  piece.outputs.push_back(span(slot.narrow(0, 0, operation_.size * range.length)));
  return piece;
}

Piece Pieces::scattered(const Range& range, const at::Tensor& slot) const {
  const at::Tensor output = outputs_[0].narrow(0, range.begin, range.length);
  Piece piece;
  const int64_t own = sends() ? operation_.rank * range.length : 0;
  if (sends()) {
    for (int rank = 0; rank < operation_.size; ++rank) {
      const at::Tensor bytes = slot.narrow(0, rank * range.length, range.length);
      piece.to_host.push_back({bytes, part(inputs_, rank, range)});
    }
    piece.inputs.push_back(span(slot.narrow(0, 0, operation_.size * range.length)));
  }
  const at::Tensor bytes = slot.narrow(0, own, range.length);
  piece.outputs.push_back(span(bytes));
  piece.to_device.push_back({output, bytes});
  return piece;
}

Piece Pieces::undivided(const at::Tensor& slot) const {
  Piece piece;
  int64_t at = 0;
  const auto next = [&](const at::Tensor& tensor) {
    at += tensor.numel();
    return slot.narrow(0, at - tensor.numel(), tensor.numel());
  };
  for (const at::Tensor& input : inputs_) {
    const at::Tensor bytes = next(input);
    piece.to_host.push_back({bytes, input});
    piece.inputs.push_back(span(bytes));
  }
  for (const at::Tensor& output : outputs_) {
    const at::Tensor bytes = next(output);
    piece.to_device.push_back({output, bytes});
    piece.outputs.push_back(span(bytes));
  }
  return piece;
}

}  // namespace smdist::torch_binding
