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

std::optional<std::pair<PieceInFlight, std::exception_ptr>> PieceTable::next_ended() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !ended_.empty() || (is_stopped_ && pieces_.empty()); });
  if (ended_.empty()) return std::nullopt;
  const auto [number, error] = ended_.front();
  ended_.pop_front();
  PieceInFlight piece = std::move(pieces_.at(number));
  pieces_.erase(number);
  return std::make_pair(std::move(piece), error);
}

void PieceTable::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_one();
}

}  // namespace smdist::torch_binding
