// SPDX-License-Identifier: Apache-2.0
// Choice of torch's calls that are carried out in two levels, and their conversion.
#include <algorithm>
#include <utility>

#include "backend.h"
#include "staging/registry.h"

namespace smdist::torch_binding {
namespace {

at::Tensor text_tensor(const std::string& text) {
  TORCH_CHECK(static_cast<int64_t>(text.size()) <= kExchangedBytes, "a rank describes itself with ",
              text.size(), " bytes, but at most ", kExchangedBytes, " bytes are exchanged.");
  at::Tensor bytes = at::zeros({kExchangedBytes}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
  return bytes;
}

std::string text_of(const at::Tensor& bytes) {
  return reinterpret_cast<const char*>(bytes.data_ptr<uint8_t>());
}

}  // namespace

// Starts operations in two levels. Returns null if they are to be staged.
Backend::WorkPtr Backend::start_in_two_levels(const Name& name, const std::vector<Call>& calls,
                                              const Tensors& shown, const Tensors& outputs,
                                              c10::Device device) {
  if (!level_options_.decide || size_ == 1 || calls.empty()) return {};
  std::vector<DeviceCall> device_calls;
  int64_t bytes = 0;
  for (const Call& call : calls) {
    device_calls.push_back({.kind = call.kind,
                            .inputs = call.inputs,
                            .outputs = call.outputs,
                            .reduction = call.reduction,
                            .timeout = operation_of(call, nullptr).timeout});
    if (!level_ops_of(device_calls.back())) return {};
    check_lengths(call);
    bytes += bytes_of(device_calls.back());
  }
  if (bytes < level_options_.smallest_bytes) return {};
  const std::shared_ptr<TwoLevelGroup> group = two_level_group(device);
  if (!group) return {};
  size_t pieces = 0;
  for (const DeviceCall& call : device_calls) pieces += group->num_pieces(call);
  auto work =
      c10::make_intrusive<TwoLevelWork>(engine_, rank_, name.type, name.title, shown, outputs,
                                        group->context(), group->result_stream(), pieces);
  for (const DeviceCall& call : device_calls) {
    activity().begin(call.kind);
    try {
      group->start(call, work, [kind = call.kind] { activity().end(kind); });
    } catch (...) {
      activity().end(call.kind);
      std::rethrow_exception(translated(std::current_exception()));
    }
  }
  return work;
}

// Returns the group for two levels, or null if tensors are staged. All ranks decide this together,
// in the first call that could take two levels.
std::shared_ptr<TwoLevelGroup> Backend::two_level_group(c10::Device device) {
  if (!is_level_decided_) {
    const auto decision =
        level_options_.decide(device, [this](const std::string& text) { return exchange(text); });
    if (decision) {
      const std::lock_guard<std::mutex> lock(two_levels_mutex_);
      two_levels_ = std::make_shared<TwoLevelGroup>(engine_, groups_of(*decision, device));
    }
    is_level_decided_ = true;
  }
  const std::lock_guard<std::mutex> lock(two_levels_mutex_);
  TORCH_CHECK_VALUE(
      !two_levels_ || two_levels_->device() == device, "the tensor is on ", device,
      ", but the earlier tensors of this process group were on ", two_levels_->device(),
      ", for which the communicators within the host were made. Move it there, or set the "
      "environment variable SMDIST_GPU_COLLECTIVES to staged.");
  return two_levels_;
}

LevelGroups Backend::groups_of(const LevelDecision& decision, c10::Device device) {
  if (!staging_) staging_ = staging_of(engine_, staging_options_);
  LevelGroups groups{.device = device,
                     .layout = decision.layout,
                     .host_group = decision.host_group,
                     .host_reduce = decision.host_reduce,
                     .host_gather = decision.host_gather,
                     .between_hosts = {},
                     .piece_bytes = level_options_.piece_bytes,
                     .context = staging_->context_of(device)};
  if (decision.layout.num_hosts > 1) {
    StagingOptions staging_options = staging_options_;
    staging_options.wait_blocks_host = true;  // the threads of TwoLevelGroup wait on the host
    staging_options.shares_slots = false;     // one rank on each host takes part
    auto level = c10::make_intrusive<Backend>(
        engine_, decision.between_group, decision.layout.host, decision.layout.num_hosts,
        options_->timeout, staging_options, LevelOptions{}, /*owns_engine=*/false,
        std::function<void()>(), /*is_level=*/true);
    level->staging_ = std::make_shared<StagingQueue>(engine_, staging_options);
    groups.between_hosts = std::move(level);
  }
  return groups;
}

// Returns the texts of all ranks, by an all-gather of the engine.
std::vector<std::string> Backend::exchange(const std::string& text) {
  Tensors inputs{text_tensor(text)};
  TensorLists outputs(1);
  for (int rank = 0; rank < size_; ++rank) {
    outputs[0].push_back(at::empty({kExchangedBytes}, at::kByte));
  }
  allgather(outputs, inputs, c10d::AllgatherOptions())->wait();
  std::vector<std::string> texts;
  for (const at::Tensor& output : outputs[0]) {
    texts.push_back(text_of(output).substr(0, kExchangedBytes));
  }
  return texts;
}

}  // namespace smdist::torch_binding
