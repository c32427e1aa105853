// SPDX-License-Identifier: Apache-2.0
#include "engine/exchanges.h"

#include <algorithm>
#include <string>
#include <utility>

#include "smdist/errors.h"

namespace smdist {

Exchanges::Exchanges(ArenaLayout layout, Span own_arena)
    : layout_(std::move(layout)),
      arena_(own_arena),
      places_(holds_all(own_arena) ? layout_.num_exchanges : 0) {}

bool Exchanges::is_free(const Place& place) {
  return !place.sum || (place.sum->is_done() && place.sum->is_left());
}

SharedSum* Exchanges::begin(SumTask task, size_t member) {
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (!is_free(place)) continue;
    if (place.sum) place.count = place.sum->end();
    place.sum = std::make_unique<SharedSum>(std::move(task), member, layout_.exchange(arena_, i),
                                            place.count);
    return place.sum.get();
  }
  return nullptr;
}

Meeting Exchanges::meeting_of(const SharedSum& sum) const {
  const auto place = std::find_if(places_.begin(), places_.end(),
                                  [&](const Place& each) { return each.sum.get() == &sum; });
  return {static_cast<uint32_t>(place - places_.begin()), place->count};
}

Exchange Exchanges::at(const Span& arena, const Meeting& meeting) const {
  if (meeting.exchange >= layout_.num_exchanges || !holds_all(arena)) {
    throw PeerError("is at exchange " + std::to_string(meeting.exchange) + ", which it has not");
  }
  return layout_.exchange(arena, meeting.exchange);
}

void Exchanges::cancel(SharedSum& sum) {
  sum.cancel();
  Place& place = places_[meeting_of(sum).exchange];
  place.count = sum.end();
  place.sum.reset();
}

void Exchanges::clear() { places_.clear(); }

}  // namespace smdist
