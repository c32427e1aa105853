// SPDX-License-Identifier: Apache-2.0
// all_reduce of sparse tensors: an all_gather of the elements of all ranks, which each rank then
// adds in rank order.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "backend.h"

namespace smdist::torch_binding {
namespace {

using Tensors = Backend::Tensors;
using TensorLists = Backend::TensorLists;

constexpr size_t kShape = 16;  // length of the tensor that describes a shape

// Returns the devices on whose streams the users of a tensor have to wait for it.
std::vector<c10::Device> devices_of(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return {};
  return {tensor.device()};
}

// Work of a sparse all_reduce, which completes when the gathered elements have been added.
//
// Thread safety: all methods may be called from any thread.
class SparseWork final : public c10d::Work {
 public:
  SparseWork(int rank, at::Tensor result, const char* title)
      : Work(rank, c10d::OpType::_ALLREDUCE_SPARSE, title, Tensors{result}),
        result_(std::move(result)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), devices_of(result_))) {}

  void complete(std::exception_ptr error) {
    finish(error);
    if (error) {
      future_->setError(error);
    } else {
      future_->markCompleted(c10::IValue(Tensors{result_}));
    }
  }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool is_complete = Work::wait(timeout);
    future_->wait();  // also lets the current stream of a device wait for the sum
    return is_complete;
  }
  Tensors result() override { return {result_}; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  const at::Tensor result_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

Tensors buffers_like(const at::Tensor& like, int ranks) {
  Tensors buffers;
  for (int i = 0; i < ranks; ++i) buffers.push_back(at::empty_like(like));
  return buffers;
}

// Returns the tensor padded with zeros to the length of the longest one of all ranks.
at::Tensor padded(const at::Tensor& tensor, int64_t dimension, int64_t length) {
  auto sizes = tensor.sizes().vec();
  sizes[dimension] = length;
  at::Tensor result = at::zeros(sizes, tensor.options());
  result.narrow(dimension, 0, tensor.size(dimension)).copy_(tensor);
  return result;
}

// Returns a tensor with the number of elements, of sparse dimensions and of dimensions, then all
// sizes, padded to a fixed length, so that ranks can compare their shapes.
at::Tensor shape_of(const at::Tensor& tensor) {
  std::vector<int64_t> shape = {tensor._nnz(), tensor.sparse_dim(), tensor.dim()};
  shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  TORCH_CHECK_VALUE(shape.size() <= kShape, "the sparse tensor has ", tensor.dim(),
                    " dimensions, but smdist can add sparse tensors of at most ", kShape - 3, ".");
  shape.resize(kShape);
  return at::tensor(shape, at::kLong);
}

// Returns the number of elements of each rank, after a check that all shapes are equal.
std::vector<int64_t> check_shapes(const Tensors& shapes, const at::Tensor& own) {
  std::vector<int64_t> lengths;
  for (size_t rank = 0; rank < shapes.size(); ++rank) {
    TORCH_CHECK_VALUE(
        at::equal(shapes[rank].slice(0, 1), own.slice(0, 1)), "the sparse tensor of rank ", rank,
        " has another shape than the sparse tensor of this rank. [number of sparse dimensions, "
        "number of dimensions, sizes...] is ",
        shapes[rank].slice(0, 1), " on that rank and ", own.slice(0, 1),
        " on this rank. All ranks must add tensors of the same shape.");
    lengths.push_back(shapes[rank][0].item<int64_t>());
  }
  return lengths;
}

}  // namespace

// Starts an all_reduce of a sparse tensor. Exchanges the shapes before it returns, and the elements
// asynchronously.
Backend::WorkPtr Backend::allreduce_sparse_tensor(const at::Tensor& tensor,
                                                  const c10d::AllreduceOptions& options) {
  TORCH_CHECK_VALUE(
      options.reduceOp == c10d::ReduceOp::SUM,
      "smdist supports only ReduceOp.SUM for sparse tensors. Use it, or call to_dense() first.");
  const at::Tensor own = tensor.coalesce();
  check_arithmetic(own.values());
  c10d::AllgatherOptions gather;
  gather.timeout = options.timeout;
  Tensors own_shape = {shape_of(own)};
  TensorLists shapes = {buffers_like(own_shape[0], size_)};
  allgather(shapes, own_shape, gather)->wait();
  std::vector<int64_t> lengths = check_shapes(shapes[0], own_shape[0]);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());

  Tensors parts = {padded(own.indices(), 1, longest), padded(own.values(), 0, longest)};
  std::vector<Tensors> gathered(static_cast<size_t>(size_));
  for (Tensors& of_rank : gathered) {
    of_rank = {at::empty_like(parts[0]), at::empty_like(parts[1])};
  }
  WorkPtr moving = allgather_coalesced(gathered, parts, gather);
  auto work = c10::make_intrusive<SparseWork>(rank_, tensor, "smdist:sparse_all_reduce");
  moving->getFuture()->addCallback([work, tensor, gathered, lengths](c10::ivalue::Future& moved) {
    if (moved.hasError()) return work->complete(moved.exception_ptr());
    try {
      Tensors indices;
      Tensors values;
      for (size_t rank = 0; rank < gathered.size(); ++rank) {
        const int64_t count = lengths[rank];
        indices.push_back(gathered[rank][0].narrow(1, 0, count));
        values.push_back(gathered[rank][1].narrow(0, 0, count));
      }
      const at::Tensor sum = at::_sparse_coo_tensor_unsafe(at::cat(indices, 1), at::cat(values, 0),
                                                           tensor.sizes(), tensor.options());
      const at::NoGradGuard no_gradient;
      tensor.copy_(sum.coalesce());  // into the tensor itself, because a detached one would not
                                     // share the elements
      work->complete(nullptr);
    } catch (...) {
      work->complete(std::current_exception());
    }
  });
  return work;
}

}  // namespace smdist::torch_binding
