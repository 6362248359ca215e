// happens_before.cpp: which accesses every thread has been told of (vector clocks).
//
// A synchronisation object carries the knowledge of those who released into it to those who acquire from it. A block barrier makes
// everybody know everything of their own block, so it only begins an epoch: a stamp of a thread of the block is known if it is older than
// the epoch. Entries for other actors, and what the asynchronous proxy may use, are carried over in `base`.
#include <algorithm>

#include "machine.h"

namespace poem::emu {

static uint32_t first_actor(const Block& b) { return b.rank * machine.threads; }
uint32_t actors() { return machine.cluster * (machine.threads + WARPGROUPS + MAX_MBARRIERS); }
uint32_t warpgroup_actor(const Block& b, int group) {
  return machine.threads * machine.cluster + b.rank * (WARPGROUPS + MAX_MBARRIERS) + group;
}
uint32_t copies_actor(const Block& b, const Mbarrier& m) { return warpgroup_actor(b, WARPGROUPS) + (&m - b.mbarriers.data()); }
std::string name_of_actor(uint32_t actor) {
  const uint32_t threads = machine.threads * machine.cluster;
  const auto of_block = [](uint32_t rank) { return machine.cluster > 1 ? concat(" of block ", rank, " of the cluster") : std::string(); };
  if (actor < threads) return concat("thread ", actor % machine.threads, of_block(actor / machine.threads));
  const uint32_t kind = (actor - threads) % (WARPGROUPS + MAX_MBARRIERS), rank = (actor - threads) / (WARPGROUPS + MAX_MBARRIERS);
  return kind < WARPGROUPS ? concat("a wgmma of warpgroup ", kind, of_block(rank))
                           : concat("a copy that completes on an mbarrier", of_block(rank));
}

static void join(std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  if (a.size() < b.size()) a.resize(b.size(), 0);
  for (size_t i = 0; i < b.size(); ++i) a[i] = std::max(a[i], b[i]);
}
static Knowledge& knowledge_of(Fiber& f) {
  Block& b = *f.block;
  if (f.epoch != b.epoch) {
    f.epoch = b.epoch;
    f.knows = b.base;
    f.knows.seen.resize(actors(), 0);
    std::fill_n(f.knows.seen.begin() + first_actor(b), machine.threads, b.epoch_start - 1);
  }
  return f.knows;
}
void release(Fiber& f, Knowledge& to) {
  if (!machine.check) return;
  Knowledge& k = knowledge_of(f);
  k.seen[f.actor] = f.clock++;
  join(to.seen, k.seen);
  join(to.fenced, k.fenced);
}
void acquire(Fiber& f, const Knowledge& from) {
  if (!machine.check || from.seen.empty()) return;
  Knowledge& k = knowledge_of(f);
  join(k.seen, from.seen);
  join(k.fenced, from.fenced);
  f.block->learned = true;
}
void learn(Fiber& f, Stamp of) {
  uint32_t& clock = knowledge_of(f).seen[of.actor];
  clock = std::max(clock, of.clock);
  f.block->learned = true;
}
// All that the thread knows of, its own accesses included, may now be used by the asynchronous proxy.
void fence_async(Fiber& f) {
  Knowledge& k = knowledge_of(f);
  k.seen[f.actor] = f.clock++;
  join(k.fenced, k.seen);
  f.block->learned = true;
}
void next_epoch(Block& b) {
  Fiber* const fibers = &machine.fibers[first_actor(b)];
  uint32_t last = 0;
  for (int i = 0; i < machine.threads; ++i) last = std::max(last, fibers[i].clock);
  if (b.learned)
    for (int i = 0; i < machine.threads; ++i)
      if (fibers[i].epoch == b.epoch) {
        join(b.base.seen, fibers[i].knows.seen);
        join(b.base.fenced, fibers[i].knows.fenced);
      }
  b.learned = false;
  ++b.epoch;
  b.epoch_start = last + 1;
  for (int i = 0; i < machine.threads; ++i) fibers[i].clock = b.epoch_start;
}

bool known(const Fiber& f, Stamp s) {
  if (s.actor == f.actor) return true;
  const Block& b = *f.block;
  const bool own_block = s.actor - first_actor(b) < (uint32_t)machine.threads;
  if (own_block && s.clock < b.epoch_start) return true;
  if (f.epoch == b.epoch) return f.knows.seen[s.actor] >= s.clock;
  return !own_block && s.actor < b.base.seen.size() && b.base.seen[s.actor] >= s.clock;
}
bool known_to_proxy(const Fiber& f, Stamp s) {
  const auto& fenced = f.epoch == f.block->epoch ? f.knows.fenced : f.block->base.fenced;
  return s.actor < fenced.size() && fenced[s.actor] >= s.clock;
}

}  // namespace poem::emu
