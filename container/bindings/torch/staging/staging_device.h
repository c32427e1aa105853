// SPDX-License-Identifier: Apache-2.0
// Streams and pinned memory of one device, through which its tensors are staged.
#pragma once

#include <memory>
#include <string>

#include "awaited_works.h"
#include "copy_streams.h"
#include "pinned_slots.h"
#include "stream_signal.h"

namespace smdist::torch_binding {

// Limits of the host memory for staging, and how wait() waits. All ranks must have the same limits.
struct StagingOptions {
  size_t slot_bytes = size_t{4} << 20;
  size_t max_slots = 16;          // for each device
  bool wait_blocks_host = false;  // true: also where streams can wait for signals
  bool shares_slots = true;       // slots are in the engine's shared memory, where there is any
};

// Objects that the works on one device share.
struct DeviceContext {
  CopyStreams streams;
  StreamSignals* signals;  // null: wait() blocks the host
  std::shared_ptr<AwaitedWorks> awaited;
};

// Context and host memory of one device.
struct StagingDevice {
  // memory: for slots; empty: the slots are in no memory that other ranks can read.
  StagingDevice(c10::Device device, const StagingOptions& options,
                const std::shared_ptr<AwaitedWorks>& awaited, SharedMemory memory);

  PinnedSlots slots;
  std::string why_not_shared;        // empty: slots are in the shared memory, or there is none
  std::string why_wait_blocks_host;  // empty: it does not, or the options want it
  const DeviceContext context;
};

}  // namespace smdist::torch_binding
