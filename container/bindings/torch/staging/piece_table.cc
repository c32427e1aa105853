// SPDX-License-Identifier: Apache-2.0
#include "piece_table.h"

namespace smdist::torch_binding {

uint64_t PieceTable::add(PieceInFlight piece) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pieces_.emplace(++last_number_, std::move(piece));
  return last_number_;
}

void PieceTable::end(uint64_t number, const std::exception_ptr& error) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_.emplace_back(number, error);
  }
  changed_.notify_one();
}

PieceTable::Next PieceTable::next_ended(std::optional<std::chrono::microseconds> at_most) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto has_news = [this] { return !ended_.empty() || (is_stopped_ && pieces_.empty()); };
  if (at_most) {
    changed_.wait_for(lock, *at_most, has_news);
  } else {
    changed_.wait(lock, has_news);
  }
  if (ended_.empty()) return {std::nullopt, is_stopped_ && pieces_.empty()};
  const auto [number, error] = ended_.front();
  ended_.pop_front();
  PieceInFlight piece = std::move(pieces_.at(number));
  pieces_.erase(number);
  return {std::make_pair(std::move(piece), error), false};
}

void PieceTable::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_one();
}

}  // namespace smdist::torch_binding
