// SPDX-License-Identifier: Apache-2.0
// All collectives except all_reduce, on tensors that are divided along axis 0 (rows).
#include <algorithm>
#include <numeric>
#include <utility>

#include "async_operation.h"
#include "kernels.h"
#include "smdist/errors.h"

namespace smdist::tensorflow_binding {
namespace {

using Counts = std::vector<int64_t>;

constexpr int64_t kMostBytes = int64_t{1}
                               << 48;  // sums of row lengths up to this limit do not overflow

void require(bool holds, const std::string& fault) {
  if (!holds) throw UsageError(fault);
}

int64_t sum_of(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// One call of an op: its arguments, and the engine operation built from them.
//
// Thread safety: none.
class RowCollectiveCall final {
 public:
  RowCollectiveCall(const RowCollectiveAttributes& attributes, const EngineContext& current,
                    TF_OpKernelContext* context)
      : attributes_(attributes),
        place_(place_in(attributes.submission.group, current)),
        rank_(static_cast<size_t>(place_.rank)),
        size_(static_cast<size_t>(place_.size)),
        value_(input_of(context, 0)),
        type_(TF_TensorType(value_.get())),
        shape_(shape_of(value_.get())),
        width_(width_of(type_)),
        sent_(integers_of(input_of(context, 1).get())),
        received_(integers_of(input_of(context, 2).get())) {
    operation_.kind = attributes.kind;
    operation_.dtype = wire_of(type_).dtype;
  }

  void start(TF_OpKernelContext* context, const EngineContext& current) {
    build();
    Results results{type_, {{result_, 0, buffer_bytes_}}, buffer_};
    submit(context, current, std::move(operation_), std::move(results), {value_},
           attributes_.submission);
  }

 private:
  void build() {
    switch (attributes_.kind) {
      case Collective::kBroadcast:
        return broadcast();
      case Collective::kAllGather:
        return all_gather();
      case Collective::kAllToAll:
        return all_to_all();
      case Collective::kReduceScatter:
        return reduce_scatter();
      case Collective::kBarrier:
        return make_result({0});
      case Collective::kAllReduce:
      case Collective::kReduce:
      case Collective::kGather:
      case Collective::kScatter:
      case Collective::kSend:
      case Collective::kReceive:
        throw UsageError(std::string("the op does not support the collective ") +
                         name_of(attributes_.kind));
    }
  }

  void broadcast() {
    make_result(shape_);
    operation_.root = attributes_.root;
    operation_.layout = layout_of(type_, {shape_});
    if (static_cast<int>(rank_) == attributes_.root) operation_.inputs = {span_of(value_.get())};
    operation_.outputs = {whole()};
  }

  void all_gather() {
    check_rows(received_, "received");
    require(received_[rank_] == shape_[0], "the tensor has " + std::to_string(shape_[0]) +
                                               " rows, but `received` has " +
                                               std::to_string(received_[rank_]) + " for this rank");
    make_result(rows(sum_of(received_)));
    const bool is_equal =
        std::all_of(received_.begin(), received_.end(), [&](int64_t n) { return n == shape_[0]; });
    if (is_equal) {
      operation_.layout = layout_of(type_, {shape_});
      operation_.inputs = {span_of(value_.get())};
      operation_.outputs = {whole()};
      return;
    }
    operation_.kind =
        Collective::kAllToAll;  // as on all ranks, because `received` is the same on all
    operation_.layout = layout_of_row();
    operation_.inputs.assign(size_, span_of(value_.get()));
    operation_.outputs = cut(buffer_->data(), received_);
  }

  void all_to_all() {
    check_rows(received_, "received");
    check_rows(sent_, "sent");
    check_all_rows(sent_, "sent");
    make_result(rows(sum_of(received_)));
    operation_.layout = layout_of_row();
    operation_.inputs = cut(static_cast<uint8_t*>(span_of(value_.get()).data), sent_);
    operation_.outputs = cut(buffer_->data(), received_);
  }

  void reduce_scatter() {
    require(wire_of(type_).has_arithmetic,
            "smdist cannot reduce tensors of this dtype. Convert the tensor to float32 first.");
    check_rows(received_, "received");
    check_all_rows(received_, "received");
    const bool is_equal = std::all_of(received_.begin(), received_.end(),
                                      [&](int64_t n) { return n == received_[0]; });
    require(is_equal,
            "reduce_scatter gives every rank the same number of rows, but the tensor has " +
                std::to_string(shape_[0]) + " rows for " + std::to_string(size_) +
                " ranks. Make the length of the first axis a multiple of the number of ranks");
    make_result(rows(received_[rank_]));
    operation_.op = attributes_.op;
    operation_.layout = layout_of(type_, {shape_});
    operation_.inputs = {span_of(value_.get())};
    operation_.outputs = {whole()};
  }

  void check_rows(const Counts& counts, const std::string& name) const {
    require(!shape_.empty(),
            "a scalar has no rows to move between ranks. Give it an axis of length 1 first.");
    require(counts.size() == size_, "`" + name + "` has " + std::to_string(counts.size()) +
                                        " numbers for " + std::to_string(size_) +
                                        " ranks. Give one for each rank.");
    const bool is_any_negative =
        std::any_of(counts.begin(), counts.end(), [](int64_t n) { return n < 0; });
    require(!is_any_negative, "`" + name + "` has a negative number of rows");
    const int64_t most = kMostBytes / std::max<int64_t>(1, static_cast<int64_t>(row_bytes()));
    const bool is_any_larger =
        std::any_of(counts.begin(), counts.end(), [&](int64_t n) { return n > most; });
    require(!is_any_larger, "`" + name + "` has more rows than fit in memory");
  }

  void check_all_rows(const Counts& counts, const std::string& name) const {
    require(sum_of(counts) == shape_[0],
            "`" + name + "` sums up to " + std::to_string(sum_of(counts)) +
                " rows, but the tensor has " + std::to_string(shape_[0]));
  }

  Shape rows(int64_t count) const {
    Shape shape = shape_;
    shape[0] = count;
    return shape;
  }

  Shape row() const { return {shape_.begin() + 1, shape_.end()}; }
  uint64_t layout_of_row() const { return layout_of(type_, {row()}); }
  size_t row_bytes() const { return static_cast<size_t>(elements_of(row())) * width_; }

  void make_result(Shape shape) {
    buffer_bytes_ = static_cast<size_t>(elements_of(shape)) * width_;
    buffer_ = std::make_shared<PooledBuffer>(buffer_bytes_);
    result_ = std::move(shape);
  }

  Span whole() const { return {buffer_->data(), buffer_bytes_}; }

  std::vector<Span> cut(uint8_t* data, const Counts& counts) const {
    std::vector<Span> spans;
    for (const int64_t count : counts) {
      const size_t bytes = static_cast<size_t>(count) * row_bytes();
      spans.push_back({data, bytes});
      if (bytes > 0) data += bytes;
    }
    return spans;
  }

  const RowCollectiveAttributes attributes_;
  const GroupPlace place_;
  const size_t rank_;
  const size_t size_;
  const TensorPtr value_;
  const TF_DataType type_;
  const Shape shape_;
  const size_t width_;
  const Counts sent_;
  const Counts received_;
  Operation operation_;
  Shape result_;
  size_t buffer_bytes_ = 0;
  BufferPtr buffer_;
};

Collective kind_called(const std::string& name) {
  for (uint8_t value = 0; value < kCollectives; ++value) {
    const auto kind = static_cast<Collective>(value);
    if (name == name_of(kind)) return kind;
  }
  throw UsageError("'" + name + "' is not a collective");
}

}  // namespace

RowCollectiveAttributes row_collective_attributes(TF_OpKernelConstruction* context) {
  const Status status;
  int32_t root = 0;
  TF_OpKernelConstruction_GetAttrInt32(context, "root", &root, status.get());
  status.check();
  return {kind_called(text_attribute(context, "kind")), reduce_op_attribute(context), root,
          submission_attributes(context)};
}

void start_row_collective(const RowCollectiveAttributes& attributes, TF_OpKernelContext* context) {
  const EngineContext current = current_engine();
  RowCollectiveCall(attributes, current, context).start(context, current);
}

}  // namespace smdist::tensorflow_binding
