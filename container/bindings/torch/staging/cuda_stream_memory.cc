// SPDX-License-Identifier: Apache-2.0
#include "cuda_stream_memory.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "cuda_driver.h"

namespace smdist::torch_binding {
namespace {

// Types and values of the driver's interface since CUDA 11.7, for which no header is needed.
using Address = unsigned long long;  // CUdeviceptr
using StreamOperation = int (*)(void* stream, Address word, uint32_t value, unsigned flags);
using GetDevicePointer = int (*)(Address* device, void* host, unsigned flags);
constexpr unsigned kWaitUntilReached = 0;  // CU_STREAM_WAIT_VALUE_GEQ
constexpr unsigned kWriteBehindAll = 0;    // CU_STREAM_WRITE_VALUE_DEFAULT

struct MemoryFunctions {
  StreamOperation wait = nullptr;
  StreamOperation write = nullptr;
  GetDevicePointer get_device_pointer = nullptr;
  std::string missing;  // why the operations cannot be used; empty if they can
};

MemoryFunctions memory_functions() {
  MemoryFunctions driver;
  look_up("cuStreamWaitValue32_v2", &driver.wait, &driver.missing);
  look_up("cuStreamWriteValue32_v2", &driver.write, &driver.missing);
  look_up("cuMemHostGetDevicePointer_v2", &driver.get_device_pointer, &driver.missing);
  return driver;
}

class CudaStreamMemory final : public StreamMemory {
 public:
  explicit CudaStreamMemory(const MemoryFunctions& driver) : driver_(driver) {}

  void wait(const c10::Stream& stream, std::atomic<uint32_t>& word, uint32_t value) const override {
    call(driver_.wait, "cuStreamWaitValue32", stream, word, value, kWaitUntilReached);
  }

  void write(const c10::Stream& stream, std::atomic<uint32_t>& word,
             uint32_t value) const override {
    call(driver_.write, "cuStreamWriteValue32", stream, word, value, kWriteBehindAll);
  }

 private:
  // The guard makes the context of the stream's device current, as the driver requires.
  void call(StreamOperation operation, const char* name, const c10::Stream& stream,
            std::atomic<uint32_t>& word, uint32_t value, unsigned flags) const {
    const c10::StreamGuard guard(stream);
    Address address = 0;
    check_cuda(driver_.get_device_pointer(&address, &word, 0), "cuMemHostGetDevicePointer");
    void* const native =
        c10::impl::VirtualGuardImpl(stream.device_type()).getStreamNativeHandle(stream);
    check_cuda(operation(native, address, value, flags), name);
  }

  const MemoryFunctions& driver_;
};

}  // namespace

const StreamMemory* cuda_stream_memory(std::string* missing) {
  static const auto* const driver = new MemoryFunctions(memory_functions());
  static const auto* const memory = new CudaStreamMemory(*driver);
  *missing = driver->missing;
  return missing->empty() ? memory : nullptr;
}

}  // namespace smdist::torch_binding
