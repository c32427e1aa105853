// SPDX-License-Identifier: Apache-2.0
// A cluster in one process: one engine per rank.
#pragma once

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "memory/arena_layout.h"
#include "smdist/engine.h"
#include "transport/memory_transport.h"

namespace smdist::testing {

// kMemory: in-memory transport. kShared: the same with an arena per rank. kTcp: TCP. kLocal: TCP
// and Unix sockets with shared memory.
enum class Network { kMemory, kShared, kTcp, kLocal };

using Result = std::future<std::exception_ptr>;

// Returns text such as "TimeoutError: ..."; empty without an error.
inline std::string text_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const UsageError& e) {
    return std::string("UsageError: ") + e.what();
  } catch (const PeerError& e) {
    return std::string("PeerError: ") + e.what();
  } catch (const TimeoutError& e) {
    return std::string("TimeoutError: ") + e.what();
  } catch (const SystemError& e) {
    return std::string("SystemError: ") + e.what();
  } catch (const Error& e) {
    return std::string("Error: ") + e.what();
  }
}

inline std::string text_of(Result& result) { return text_of(result.get()); }

inline Result start(Engine& engine, uint32_t group, Operation operation) {
  auto promise = std::make_shared<std::promise<std::exception_ptr>>();
  Result result = promise->get_future();
  operation.done = [promise](std::exception_ptr error) { promise->set_value(error); };
  if (operation.timeout.count() == 0) operation.timeout = std::chrono::seconds(30);
  engine.submit(group, std::move(operation));
  return result;
}

template <typename T>
Span span(std::vector<T>& values) {
  return {values.data(), values.size() * sizeof(T)};
}

// Returns an in-place sum of float32 values.
inline Operation sum_of(std::vector<float>& values) {
  Operation operation;
  operation.kind = Collective::kAllReduce;
  operation.dtype = Dtype::kFloat32;
  operation.inputs = {span(values)};
  operation.outputs = {span(values)};
  return operation;
}

class Cluster final {
 public:
  using Tweak = std::function<void(Options&)>;

  explicit Cluster(int size, Network network = Network::kMemory, const Tweak& tweak = nullptr) {
    const bool is_simulated = network == Network::kMemory || network == Network::kShared;
    if (is_simulated) hub = std::make_shared<MemoryHub>(size);
    if (network == Network::kShared) share_memory(size, tweak);
    std::vector<Endpoint> endpoints;
    std::vector<int> members;
    for (int rank = 0; rank < size; ++rank) {
      Options options = options_of(rank, size, tweak);
      options.shares_memory = network == Network::kLocal;
      engines_.push_back(make_engine(std::move(options)));
      endpoints.push_back(engines_.back()->endpoint());
      members.push_back(rank);
    }
    for (auto& engine : engines_) {
      engine->join(endpoints);
      engine->add_group(0, members);
    }
  }

  Engine& operator[](int rank) { return *engines_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(engines_.size()); }
  void end(int rank) { engines_[static_cast<size_t>(rank)].reset(); }
  std::string log() const {
    std::lock_guard<std::mutex> lock(log_mutex_);
    return log_;
  }

  std::shared_ptr<MemoryHub> hub;

 private:
  void share_memory(int size, const Tweak& tweak) {
    size_t bytes = 0;
    for (int rank = 0; rank < size; ++rank) {
      bytes = std::max(bytes, ArenaLayout(options_of(rank, size, tweak)).bytes);
    }
    hub->share_memory(bytes, options_of(0, size, tweak).hosts);
  }

  Options options_of(int rank, int size, const Tweak& tweak) {
    Options options;
    options.rank = rank;
    options.size = size;
    options.secret = "a secret between tests";
    options.session[0] = 42;
    options.fragment_bytes = 16 << 10;
    for (int i = 0; i < size; ++i) {
      options.names.push_back("rank " + std::to_string(i) + " on algo-" + std::to_string(i + 1));
    }
    options.log = [this](const std::string& line) {
      std::lock_guard<std::mutex> lock(log_mutex_);
      log_ += line + "\n";
    };
    if (tweak) tweak(options);
    return options;
  }

  std::unique_ptr<Engine> make_engine(Options options) {
    if (!hub) return std::make_unique<Engine>(std::move(options));
    auto transport = hub->transport(options.rank);
    return std::make_unique<Engine>(std::move(options), std::move(transport));
  }

  mutable std::mutex log_mutex_;
  std::string log_;
  std::vector<std::unique_ptr<Engine>> engines_;  // destroyed first, because engines write the log
};

}  // namespace smdist::testing
