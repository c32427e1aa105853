// SPDX-License-Identifier: Apache-2.0
// Who has the lead: whoever leaves work to do, the engine's own thread looks after it.
#include "engine/lead.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "check.h"
#include "transport/memory_transport.h"

namespace smdist {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kSoon{20};  // on a busy machine; what is forgotten takes a minute

// Knows no network; waits as long as it is told.
class Silence final {
 public:
  Silence() : hub_(std::make_shared<MemoryHub>(1)), transport_(hub_->transport(0)) {}
  Transport& operator*() { return *transport_; }

 private:
  std::shared_ptr<MemoryHub> hub_;
  std::unique_ptr<Transport> transport_;
};

// The engine's thread, which only counts how often it looks.
class Looker final {
 public:
  explicit Looker(Lead& lead, Transport& transport) : thread_([&] { look(lead, transport); }) {}
  ~Looker() { thread_.join(); }
  void await_look_after(int before) const {
    const Clock::time_point begin = Clock::now();
    while (looks_ <= before) {
      CHECK(Clock::now() - begin < kSoon);
      std::this_thread::yield();
    }
  }
  int looks() const { return looks_; }
  void end() { is_ended_ = true; }

 private:
  void look(Lead& lead, Transport& transport) {
    Looking looking;
    while (!is_ended_) {
      lead.take_back();
      lead.hear();
      ++looks_;
      lead.watch();
      transport.await(seconds(60), looking);
    }
  }

  std::atomic<int> looks_ = 0;
  std::atomic<bool> is_ended_ = false;
  std::thread thread_;
};

// However it sleeps: in the transport at first, then at rest.
void who_gives_up_in_a_hurry_wakes_the_engine() {
  Silence silence;
  Lead lead(*silence);
  lead.open();
  Looker looker(lead, *silence);
  for (int i = 0; i < 200; ++i) {
    looker.await_look_after(0);
    if (i % 3 == 0) std::this_thread::sleep_for(milliseconds(1));
    if (!lead.try_take()) continue;
    if (i % 2 == 0) lead.wake();  // what the holder leaves for itself is left, too
    const int before = looker.looks();
    lead.give_up(i % 2 == 0);
    looker.await_look_after(before);
  }
  looker.end();
  lead.wake();
}

void what_is_left_meanwhile_is_looked_at() {
  Silence silence;
  Lead lead(*silence);
  lead.open();
  Looker looker(lead, *silence);
  for (int i = 0; i < 200; ++i) {
    looker.await_look_after(0);
    if (!lead.try_take()) continue;
    const int before = looker.looks();
    std::thread leaving([&lead] { lead.wake(); });
    if (i % 2 == 0) leaving.join();  // before, else at any time
    lead.give_up(true);
    looker.await_look_after(before);
    if (leaving.joinable()) leaving.join();
  }
  looker.end();
  lead.wake();
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(who_gives_up_in_a_hurry_wakes_the_engine);
  RUN(what_is_left_meanwhile_is_looked_at);
}
