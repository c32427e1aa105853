// SPDX-License-Identifier: Apache-2.0
#include "level_buffers.h"

#include <algorithm>
#include <utility>

namespace smdist::torch_binding {
namespace {

using Tensors = std::vector<at::Tensor>;
using Pair = LevelBuffers::Pair;

constexpr int64_t kAlignment = 64;  // bytes: a multiple of every dtype's size

int64_t num_ranks(const HostLayout& layout) {
  return int64_t{layout.num_hosts} * layout.local_size;
}

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

LevelBuffers all_gather_undivided(const at::Tensor& input, const at::Tensor& output,
                                  const HostLayout& layout) {
  LevelBuffers buffers;
  const int hosts = layout.num_hosts;
  const at::Tensor parts = hosts == 1 ? input : at::empty({hosts * input.numel()}, input.options());
  if (hosts > 1) buffers.between_hosts = Pair{input, parts};
  for (int host = 0; host < hosts; ++host) {
    buffers.all_gathers.push_back({part_of(parts, host, hosts), part_of(output, host, hosts)});
  }
  return buffers;
}

// Returns the length of a piece of an all-gather in each rank's part, but for the last one.
int64_t gather_piece_bytes(int64_t part_bytes, const HostLayout& layout, int64_t piece_bytes) {
  if (layout.num_hosts == 1) return std::max<int64_t>(part_bytes, 1);  // one level alone
  const int64_t share = piece_bytes / num_ranks(layout) / kAlignment * kAlignment;
  return std::max(share, kAlignment);
}

// Returns one piece for each range of a rank's part. A piece is gathered in `gathered`, a buffer as
// long as a piece, and copied from there to the parts of all ranks. All pieces use the same buffer:
// the stream of results copies one out before it gathers the next one.
std::vector<LevelBuffers> all_gather_pieces(const at::Tensor& input, const at::Tensor& output,
                                            const HostLayout& layout, int64_t length) {
  const int64_t ranks = num_ranks(layout);
  const int hosts = layout.num_hosts;
  const at::Tensor parts = at::empty({hosts * input.numel()}, input.options());
  const at::Tensor gathered = at::empty({ranks * length}, input.options());
  std::vector<LevelBuffers> pieces;
  for (int64_t begin = 0; begin < input.numel(); begin += length) {
    const int64_t bytes = std::min(length, input.numel() - begin);
    const at::Tensor between = parts.narrow(0, hosts * begin, hosts * bytes);
    const at::Tensor whole = gathered.narrow(0, 0, ranks * bytes);
    LevelBuffers piece;
    piece.between_hosts = Pair{input.narrow(0, begin, bytes), between};
    for (int host = 0; host < hosts; ++host) {
      piece.all_gathers.push_back({part_of(between, host, hosts), part_of(whole, host, hosts)});
    }
    piece.copies_back.push_back(
        {whole.view({ranks, bytes}), output.view({ranks, -1}).narrow(1, begin, bytes)});
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

std::vector<LevelBuffers> all_gather(const DeviceCall& call, const HostLayout& layout,
                                     int64_t piece_bytes) {
  std::vector<Pair> copies_back;
  const at::Tensor input = as_bytes(flat(call.inputs));
  const at::Tensor output = as_bytes(buffer_for(call.outputs, copies_back));
  const int64_t length = gather_piece_bytes(input.numel(), layout, piece_bytes);
  std::vector<LevelBuffers> pieces;
  if (length < input.numel()) {
    pieces = all_gather_pieces(input, output, layout, length);
  } else {
    pieces.push_back(all_gather_undivided(input, output, layout));
  }
  std::vector<Pair>& last = pieces.back().copies_back;
  last.insert(last.end(), copies_back.begin(), copies_back.end());
  return pieces;
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
  if (call.kind == Collective::kReduceScatter) return 1;
  const at::Tensor& tensor = call.inputs[0];
  int64_t whole = tensor.numel();
  int64_t length = piece_elements(tensor, layout, piece_bytes);
  if (call.kind == Collective::kAllGather) {
    whole = bytes_of(call.inputs);
    length = gather_piece_bytes(whole, layout, piece_bytes);
  }
  return static_cast<size_t>(std::max<int64_t>(1, (whole + length - 1) / length));
}

std::vector<LevelBuffers> level_buffers_of(const DeviceCall& call, const HostLayout& layout,
                                           int64_t piece_bytes) {
  switch (call.kind) {
    case Collective::kReduceScatter:
      return {reduce_scatter(call, layout)};
    case Collective::kAllGather:
      return all_gather(call, layout, piece_bytes);
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
