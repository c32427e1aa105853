// SPDX-License-Identifier: Apache-2.0
// A small implementation of the part of TensorFlow's C API that the kernels call, for use under
// sanitizers.
#pragma once

#include <tensorflow/c/kernels.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace smdist::fake_tensorflow {

struct DropTensor {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};
using Tensor = std::unique_ptr<TF_Tensor, DropTensor>;

Tensor floats(const std::vector<float>& values, const std::vector<int64_t>& shape);
Tensor integers(const std::vector<int64_t>& values);
std::vector<float> values_of(const Tensor& tensor);

// Returns the number of memory allocations held by tensors; a tensor and its copies share one.
int64_t live_pieces();

struct Outcome {
  TF_Code code = TF_OK;
  std::string text;
  std::vector<Tensor> outputs;
};

struct Attributes {
  std::map<std::string, std::string> texts;
  std::map<std::string, int32_t> numbers;
  float scale = 1;
};

// A registered kernel, created and deleted as TensorFlow does.
class Kernel final {
 public:
  explicit Kernel(const std::string& op, const Attributes& attributes = {});
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const Outcome& made() const { return made_; }
  Outcome run(const std::vector<const Tensor*>& inputs,
              const std::vector<TF_DataType>& outputs) const;

 private:
  const TF_KernelBuilder& builder_;
  Outcome made_;
  void* kernel_ = nullptr;
};

}  // namespace smdist::fake_tensorflow
