// SPDX-License-Identifier: Apache-2.0
#include "cuda_stream_memory.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

namespace smdist::torch_binding {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// Types and values of the driver's interface since CUDA 11.7, for which no header is needed.
using Address = unsigned long long;  // CUdeviceptr
using StreamOperation = int (*)(void* stream, Address word, uint32_t value, unsigned flags);
using GetDevicePointer = int (*)(Address* device, void* host, unsigned flags);
constexpr int kSuccess = 0;
constexpr unsigned kWaitUntilReached = 0;  // CU_STREAM_WAIT_VALUE_GEQ
constexpr unsigned kWriteBehindAll = 0;    // CU_STREAM_WRITE_VALUE_DEFAULT

struct Driver {
  StreamOperation wait = nullptr;
  StreamOperation write = nullptr;
  GetDevicePointer get_device_pointer = nullptr;
  std::string missing;  // why the operations cannot be used; empty if they can
};

template <typename Function>
void look_up(void* library, const char* name, Function* function, std::string* missing) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) *missing = std::string(kLibrary) + " has no function " + name;
}

Driver load() {
  Driver driver;
  void* const library = dlopen(kLibrary, RTLD_NOW);
  if (library == nullptr) {
    driver.missing = std::string(kLibrary) + " cannot be loaded";
    return driver;
  }
  look_up(library, "cuStreamWaitValue32_v2", &driver.wait, &driver.missing);
  look_up(library, "cuStreamWriteValue32_v2", &driver.write, &driver.missing);
  look_up(library, "cuMemHostGetDevicePointer_v2", &driver.get_device_pointer, &driver.missing);
  return driver;
}

class CudaStreamMemory final : public StreamMemory {
 public:
  explicit CudaStreamMemory(const Driver& driver) : driver_(driver) {}

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
    check(driver_.get_device_pointer(&address, &word, 0), "cuMemHostGetDevicePointer");
    void* const native =
        c10::impl::VirtualGuardImpl(stream.device_type()).getStreamNativeHandle(stream);
    check(operation(native, address, value, flags), name);
  }

  static void check(int result, const char* name) {
    TORCH_CHECK(result == kSuccess, "CUDA's driver returned error ", result, " from ", name);
  }

  const Driver& driver_;
};

}  // namespace

const StreamMemory* cuda_stream_memory(std::string* missing) {
  static const auto* const driver = new Driver(load());
  static const auto* const memory = new CudaStreamMemory(*driver);
  *missing = driver->missing;
  return missing->empty() ? memory : nullptr;
}

}  // namespace smdist::torch_binding
