// SPDX-License-Identifier: Apache-2.0
// Tests that the time during which operations are in flight is the union of their times.
#include "smdist/activity.h"

#include <random>
#include <thread>
#include <vector>

#include "check.h"

namespace smdist {
namespace {

using Clock = Activity::Clock;

constexpr Collective kKind = Collective::kAllReduce;

Clock::time_point at(int tick) { return Clock::time_point(std::chrono::milliseconds(1000 + tick)); }

int64_t busy(Activity& activity, int now, Collective kind = kKind) {
  const auto total = activity.total(kind, at(now));
  return std::chrono::duration_cast<std::chrono::milliseconds>(total.busy).count();
}

uint64_t operations(Activity& activity, Collective kind = kKind) {
  return activity.total(kind).operations;
}

void nothing_is_not_busy() {
  Activity activity;

  CHECK_EQ(0, busy(activity, 1000));
  CHECK_EQ(0u, operations(activity));
}

void pauses_do_not_count() {
  Activity activity;
  activity.begin(kKind, at(0));
  activity.end(kKind, at(3));
  activity.begin(kKind, at(10));
  activity.end(kKind, at(14));

  CHECK_EQ(7, busy(activity, 100));
  CHECK_EQ(2u, operations(activity));
}

// The first operation lasts from 0 to 10, the second lies within it, the third overlaps its end.
void overlaps_count_once() {
  Activity activity;
  activity.begin(kKind, at(0));
  activity.begin(kKind, at(2));
  activity.end(kKind, at(4));
  activity.begin(kKind, at(8));
  activity.end(kKind, at(10));
  activity.end(kKind, at(15));

  CHECK_EQ(15, busy(activity, 100));
  CHECK_EQ(3u, operations(activity));
}

void operations_in_flight_count_until_now() {
  Activity activity;
  activity.begin(kKind, at(0));

  CHECK_EQ(5, busy(activity, 5));
  CHECK_EQ(6, busy(activity, 6));
  CHECK_EQ(0u, operations(activity));
}

void each_kind_has_its_own_count() {
  Activity activity;
  activity.begin(Collective::kAllGather, at(0));
  activity.begin(Collective::kReceive, at(1));
  activity.end(Collective::kAllGather, at(5));

  CHECK_EQ(5, busy(activity, 9, Collective::kAllGather));
  CHECK_EQ(8, busy(activity, 9, Collective::kReceive));
  CHECK_EQ(0, busy(activity, 9));
}

// A thread reads the clock, and another thread, which read it later, calls before it.
void calls_out_of_order_count_no_time_twice() {
  Activity activity;
  activity.begin(kKind, at(0));
  activity.end(kKind, at(10));
  activity.begin(kKind, at(7));
  activity.end(kKind, at(12));

  CHECK_EQ(12, busy(activity, 100));
}

// The result is compared with a table of ticks, each of which is busy or not.
void random_operations_match_a_table() {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    constexpr int kTicks = 60;
    std::vector<int> begins(kTicks), ends(kTicks);
    for (int i = 0; i < round % 12; ++i) {
      const int from = static_cast<int>(random() % kTicks);
      ++begins[from];
      ++ends[from + static_cast<int>(random() % (kTicks - from))];
    }
    Activity activity;
    int64_t expected = 0;
    int under_way = 0;
    for (int tick = 0; tick < kTicks; ++tick) {
      for (int i = 0; i < begins[tick]; ++i) activity.begin(kKind, at(tick));
      for (int i = 0; i < ends[tick]; ++i) activity.end(kKind, at(tick));
      under_way += begins[tick] - ends[tick];
      CHECK_EQ(expected, busy(activity, tick));
      expected += under_way > 0 ? 1 : 0;
    }
    CHECK_EQ(static_cast<uint64_t>(round % 12), operations(activity));
  }
}

void threads_may_share_an_activity() {
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  Activity activity;
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&activity] {
      for (int j = 0; j < kEach; ++j) {
        activity.begin(kKind);
        activity.total(kKind);
        activity.end(kKind);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto total = activity.total(kKind);

  CHECK_EQ(static_cast<uint64_t>(kThreads * kEach), total.operations);
  CHECK(total.busy.count() > 0 && total.busy <= Clock::now() - start);
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(nothing_is_not_busy);
  RUN(pauses_do_not_count);
  RUN(overlaps_count_once);
  RUN(operations_in_flight_count_until_now);
  RUN(each_kind_has_its_own_count);
  RUN(calls_out_of_order_count_no_time_twice);
  RUN(random_operations_match_a_table);
  RUN(threads_may_share_an_activity);
}
