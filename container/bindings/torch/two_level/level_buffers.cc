// SPDX-License-Identifier: Apache-2.0
#include "level_buffers.h"

#include <algorithm>
#include <utility>

namespace smdist::torch_binding {
namespace {

using Tensors = std::vector<at::Tensor>;
using Pair = LevelBuffers::Pair;

int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

bool can_reduce(at::ScalarType type, const Reduction& reduction) {
  const bool is_floating = at::isFloatingType(type);
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
      return is_floating || (reduction.op != ReduceOp::kAverage && reduction.scale == 1);
    default:  // torch's enum grows with its releases
      return false;
  }
}

// Returns all elements in one dimension. A contiguous tensor is not copied.
at::Tensor flat(const at::Tensor& tensor) {
  const at::Tensor contiguous = tensor.detach().contiguous();
  return contiguous.as_strided({contiguous.numel()}, {1});
}

at::Tensor flat(const Tensors& tensors) {
  if (tensors.size() == 1) return flat(tensors[0]);
  Tensors parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(flat(tensor));
  return at::cat(parts);
}

// Returns a buffer for all outputs, and adds the copies from there to those that are elsewhere.
at::Tensor buffer_for(const Tensors& outputs, std::vector<Pair>& copies_back) {
  if (outputs.size() == 1 && outputs[0].is_contiguous()) return flat(outputs[0]);
  int64_t count = 0;
  for (const at::Tensor& output : outputs) count += output.numel();
  const at::Tensor buffer = at::empty({count}, outputs[0].options());
  int64_t begin = 0;
  for (const at::Tensor& output : outputs) {
    const at::Tensor part = buffer.narrow(0, begin, output.numel());
    copies_back.push_back({part.view(output.sizes()), output.detach()});
    begin += output.numel();
  }
  return buffer;
}

at::Tensor as_bytes(const at::Tensor& buffer) { return buffer.view(at::kByte); }

// Returns part `index` of `count` equal parts.
at::Tensor part_of(const at::Tensor& buffer, int index, int count) {
  const int64_t length = buffer.numel() / count;
  return buffer.narrow(0, index * length, length);
}

// Returns a buffer with the same values and with zeros at its end, whose length is a multiple of
// `count`.
at::Tensor padded(const at::Tensor& buffer, int count) {
  const int64_t share = (buffer.numel() + count - 1) / count;
  at::Tensor longer = at::empty({share * count}, buffer.options());
  longer.narrow(0, 0, buffer.numel()).copy_(buffer);
  longer.narrow(0, buffer.numel(), longer.numel() - buffer.numel()).zero_();
  return longer;
}

// Returns the number of elements of a piece of an all-reduce, but for the last one: a multiple of
// the number of ranks of a host.
int64_t piece_elements(const at::Tensor& tensor, const HostLayout& layout, int64_t piece_bytes) {
  const int64_t shares = piece_bytes / static_cast<int64_t>(tensor.element_size()) /
                         static_cast<int64_t>(layout.local_size);
  return std::max<int64_t>(shares, 1) * layout.local_size;
}

LevelBuffers all_reduce_piece(const at::Tensor& piece, const HostLayout& layout) {
  LevelBuffers buffers;
  const at::Tensor share = part_of(piece, layout.local_rank, layout.local_size);
  buffers.reduce_scatters.push_back({piece, share});
  if (layout.num_hosts > 1) buffers.between_hosts = Pair{share, share};
  buffers.all_gathers.push_back({share, piece});
  return buffers;
}

std::vector<LevelBuffers> all_reduce(const DeviceCall& call, const HostLayout& layout,
                                     int64_t piece_bytes) {
  const at::Tensor& tensor = call.outputs[0];
  at::Tensor whole = flat(call.inputs[0]);
  const int64_t count = whole.numel();
  if (count % layout.local_size != 0) whole = padded(whole, layout.local_size);
  const int64_t length = piece_elements(whole, layout, piece_bytes);
  std::vector<LevelBuffers> pieces;
  for (int64_t begin = 0; begin == 0 || begin < whole.numel(); begin += length) {
    const int64_t end = std::min(begin + length, whole.numel());
    pieces.push_back(all_reduce_piece(whole.narrow(0, begin, end - begin), layout));
  }
  if (whole.numel() != count || !tensor.is_contiguous()) {
    pieces.back().copies_back.push_back(
        {whole.narrow(0, 0, count).view(tensor.sizes()), tensor.detach()});
  }
  return pieces;
}

LevelBuffers reduce_scatter(const DeviceCall& call, const HostLayout& layout) {
  LevelBuffers buffers;
  const at::Tensor input = flat(call.inputs);
  const at::Tensor output = buffer_for(call.outputs, buffers.copies_back);
  const int hosts = layout.num_hosts;
  const at::Tensor parts =
      hosts == 1 ? output : at::empty({hosts * output.numel()}, output.options());
  for (int host = 0; host < hosts; ++host) {
    buffers.reduce_scatters.push_back({part_of(input, host, hosts), part_of(parts, host, hosts)});
  }
  if (hosts > 1) buffers.between_hosts = Pair{parts, output};
  return buffers;
}

LevelBuffers all_gather(const DeviceCall& call, const HostLayout& layout) {
  LevelBuffers buffers;
  const at::Tensor input = as_bytes(flat(call.inputs));
  const at::Tensor output = as_bytes(buffer_for(call.outputs, buffers.copies_back));
  const int hosts = layout.num_hosts;
  const at::Tensor parts = hosts == 1 ? input : at::empty({hosts * input.numel()}, input.options());
  if (hosts > 1) buffers.between_hosts = Pair{input, parts};
  for (int host = 0; host < hosts; ++host) {
    buffers.all_gathers.push_back({part_of(parts, host, hosts), part_of(output, host, hosts)});
  }
  return buffers;
}

}  // namespace

int64_t bytes_of(const DeviceCall& call) {
  return std::max(bytes_of(call.inputs), bytes_of(call.outputs));
}

std::optional<LevelOps> level_ops_of(const DeviceCall& call) {
  using Op = c10d::ReduceOp;
  if (call.kind == Collective::kAllGather) return LevelOps{Op::SUM, Op::SUM};
  if (call.kind != Collective::kAllReduce && call.kind != Collective::kReduceScatter) {
    return std::nullopt;
  }
  if (!can_reduce(call.outputs[0].scalar_type(), call.reduction)) return std::nullopt;
  switch (call.reduction.op) {
    case ReduceOp::kSum:
      if (call.reduction.scale == 1) return LevelOps{Op::SUM, Op::SUM};
      return LevelOps{c10d::makePreMulSum(call.reduction.scale), Op::SUM};
    case ReduceOp::kAverage:
      return LevelOps{Op::AVG, Op::AVG};
    case ReduceOp::kMin:
      return LevelOps{Op::MIN, Op::MIN};
    case ReduceOp::kMax:
      return LevelOps{Op::MAX, Op::MAX};
    case ReduceOp::kProduct:
      return LevelOps{Op::PRODUCT, Op::PRODUCT};
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      break;
  }
  return std::nullopt;
}

size_t num_pieces(const DeviceCall& call, const HostLayout& layout, int64_t piece_bytes) {
  if (call.kind != Collective::kAllReduce) return 1;
  const at::Tensor& tensor = call.inputs[0];
  const int64_t length = piece_elements(tensor, layout, piece_bytes);
  return static_cast<size_t>(std::max<int64_t>(1, (tensor.numel() + length - 1) / length));
}

std::vector<LevelBuffers> level_buffers_of(const DeviceCall& call, const HostLayout& layout,
                                           int64_t piece_bytes) {
  switch (call.kind) {
    case Collective::kReduceScatter:
      return {reduce_scatter(call, layout)};
    case Collective::kAllGather:
      return {all_gather(call, layout)};
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
    case Collective::kBarrier:
    case Collective::kSend:
    case Collective::kReceive:
      break;
  }
  return all_reduce(call, layout, piece_bytes);
}

}  // namespace smdist::torch_binding
