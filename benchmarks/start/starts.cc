// SPDX-License-Identifier: Apache-2.0
// One of the processes that start engines together; benchmarks/start/engines.py starts and tells
// them what to do, line by line.
//
//   starts_benchmark mesh SIZE LANES FIRST LAST    engines FIRST to LAST; one sum of all ranks
//   starts_benchmark star SIZE LANES FIRST LAST CENTRE   sums of the rank CENTRE with each other
//   one starts_benchmark crowd                         strangers that dial the ports of a line
//   starts_benchmark alone SIZE LANES              memory of one engine without connections
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "faulty_sockets.h"
#include "smdist/engine.h"
#include "transport/open_files.h"
#include "transport/socket.h"

namespace smdist {
namespace {

using Clock = std::chrono::steady_clock;
using Result = std::future<std::string>;

constexpr size_t kElements = 100'000;

struct Arguments {
  std::string mode;
  int size = 1;
  uint32_t lanes = 1;
  int first = 0;
  int last = 0;
  int centre = -1;  // -1: sums of all ranks
};

std::atomic<int> num_log_lines{0};

Options options_of(const Arguments& arguments, int rank) {
  Options options;
  options.rank = rank;
  options.size = arguments.size;
  for (int each = 0; each < arguments.size; ++each) options.hosts.push_back(each);
  options.secret = "a secret of the benchmark";
  options.shares_memory = false;
  options.tuning.lanes = arguments.lanes;
  options.max_lanes = arguments.lanes;
  options.log = [](const std::string& line) {
    if (++num_log_lines <= 3) std::cerr << line << std::endl;
  };
  return options;
}

std::string text_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return caught.what();
  }
}

Result start_sum(Engine& engine, uint32_t group, std::vector<float>& values) {
  Operation operation;
  operation.kind = Collective::kAllReduce;
  operation.dtype = Dtype::kFloat32;
  operation.inputs = operation.outputs = {{values.data(), values.size() * sizeof(float)}};
  operation.timeout = std::chrono::minutes(5);
  auto promise = std::make_shared<std::promise<std::string>>();
  operation.done = [promise](const std::exception_ptr& error) {
    promise->set_value(text_of(error));
  };
  engine.submit(group, std::move(operation));
  return promise->get_future();
}

// Returns a field of /proc/self/status in KiB, such as "VmHWM:".
size_t kib_of(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    size_t kib = 0;
    if (word == field && status >> kib) return kib;
  }
  return 0;
}

std::string next_line() {
  std::string line;
  std::getline(std::cin, line);
  return line;
}

std::vector<Endpoint> read_endpoints() {
  std::vector<Endpoint> endpoints;
  std::istringstream ports(next_line());
  for (uint16_t port = 0; ports >> port;) endpoints.push_back({"127.0.0.1", port});
  return endpoints;
}

// Engines of this process, and the sums that they start with.
class Ranks final {
 public:
  explicit Ranks(const Arguments& arguments) : arguments_(arguments) {
    for (int rank = arguments.first; rank < arguments.last; ++rank) {
      engines_.push_back(std::make_unique<Engine>(options_of(arguments, rank)));
      std::cout << engines_.back()->endpoint().port << std::endl;
    }
  }

  void join(const std::vector<Endpoint>& endpoints) {
    std::vector<int> all;
    for (int rank = 0; rank < arguments_.size; ++rank) all.push_back(rank);
    for (auto& engine : engines_) {
      engine->join(endpoints);
      for (int other = 0; other < arguments_.size; ++other) {
        const bool is_pair = arguments_.centre >= 0 && other != arguments_.centre &&
                             (engine->rank() == arguments_.centre || engine->rank() == other);
        if (is_pair)
          engine->add_group(static_cast<uint32_t>(other) + 1, {other, arguments_.centre});
      }
      if (arguments_.centre < 0) engine->add_group(0, all);
    }
  }

  void start() {
    begin_ = Clock::now();
    values_.assign(static_cast<size_t>(arguments_.size) + engines_.size(), {});
    for (auto& engine : engines_) {
      for (const uint32_t group : groups_of(*engine)) {
        std::vector<float>& values = values_[results_.size()];
        values.assign(arguments_.centre < 0 ? kElements : 1000, 1);
        results_.push_back(start_sum(*engine, group, values));
      }
    }
  }

  void report() {
    int failures = 0;
    std::string reason;
    for (Result& result : results_) {
      const std::string error = result.get();
      failures += !error.empty();
      if (reason.empty()) reason = error;
    }
    const double seconds = seconds_since_begin();
    if (failures == 0 && is_centre()) await_lanes();
    std::cout << seconds << ' ' << seconds_since_begin() << ' ' << failures << ' '
              << kib_of("VmHWM:") << ' ' << count_open_files() << ' '
              << testing::count_faulty_connections() << ' ' << num_log_lines << ' ' << reason
              << std::endl;
  }

 private:
  bool is_centre() const {
    return arguments_.centre >= arguments_.first && arguments_.centre < arguments_.last;
  }

  std::vector<uint32_t> groups_of(const Engine& engine) const {
    std::vector<uint32_t> groups;
    if (arguments_.centre < 0) return {0};
    for (int other = 0; other < arguments_.size; ++other) {
      const bool is_pair = other != arguments_.centre &&
                           (engine.rank() == arguments_.centre || engine.rank() == other);
      if (is_pair) groups.push_back(static_cast<uint32_t>(other) + 1);
    }
    return groups;
  }

  // Waits until the engine at the centre has all its lanes: each is an open file.
  void await_lanes() const {
    const size_t wanted = static_cast<size_t>(arguments_.size - 1) * arguments_.lanes;
    while (count_open_files() < wanted && seconds_since_begin() < 60) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  double seconds_since_begin() const {
    return std::chrono::duration<double>(Clock::now() - begin_).count();
  }

  const Arguments arguments_;
  std::vector<std::vector<float>> values_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Result> results_;
  Clock::time_point begin_;
};

void run_ranks(const Arguments& arguments) {
  Ranks ranks(arguments);
  ranks.join(read_endpoints());
  std::cout << "joined" << std::endl;
  next_line();
  ranks.start();
  ranks.report();
  next_line();  // all processes have finished
}

// Dials ports in turn until the input ends, about a thousand times a second. Half of the strangers
// say nonsense, the others nothing.
void run_crowd() {
  const std::vector<Endpoint> doors = read_endpoints();
  std::thread([] {
    next_line();
    std::_Exit(0);
  }).detach();
  std::vector<UniqueFd> present;
  const std::string nonsense(128, 'x');
  for (size_t i = 0;; ++i) {
    const Endpoint& door = doors[i % doors.size()];
    const Address address(door.host, door.port);
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
    if (::connect(fd.get(), address.raw(), address.bytes) != 0) std::_Exit(0);  // the ranks ended
    if (i % 2 == 0) (void)!::send(fd.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
    present.push_back(std::move(fd));
    if (present.size() > 1000) present.clear();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Prints the KiB that one engine takes: after join(), and once its lanes are known.
void run_alone(const Arguments& arguments) {
  const size_t before = kib_of("VmRSS:");
  Options options = options_of(arguments, 0);
  options.tuning.lanes = 1;
  Engine engine(std::move(options));
  engine.join(std::vector<Endpoint>(static_cast<size_t>(arguments.size), engine.endpoint()));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const size_t joined = kib_of("VmRSS:");
  Tuning tuning;
  tuning.lanes = arguments.lanes;
  engine.tune(tuning);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  std::cout << joined - before << ' ' << kib_of("VmRSS:") - before << std::endl;
}

}  // namespace
}  // namespace smdist

int main(int count, char** words) {
  using namespace smdist;
  Arguments arguments;
  int* const numbers[] = {&arguments.size, nullptr, &arguments.first, &arguments.last,
                          &arguments.centre};
  arguments.mode = count > 1 ? words[1] : "";
  for (int i = 2; i < count && i < 7; ++i) {
    if (i == 3) {
      arguments.lanes = static_cast<uint32_t>(std::atoi(words[i]));
    } else {
      *numbers[i - 2] = std::atoi(words[i]);
    }
  }
  if (arguments.mode == "crowd") {
    run_crowd();
  } else if (arguments.mode == "alone") {
    run_alone(arguments);
  } else {
    run_ranks(arguments);
  }
}
