// async.cpp: cp.async and mbarriers.
#include "machine.h"

namespace poem::emu {

// ------------------------------------------------------------------------------------------------------- shared addresses
void* static_shared(const void* tag, size_t bytes) {
  Machine& m = machine;
  for (auto& [known_tag, offset] : m.statics)
    if (known_tag == tag) return m.current->block->arena + offset;
  const uint32_t offset = (m.static_bytes + 127) & ~127u;
  if (offset + bytes > DYNAMIC) fail("emu.bounds", concat("more than ", DYNAMIC, " bytes of static shared memory: use dynamic"), Site{});
  m.static_bytes = offset + bytes;
  m.statistics.static_shared = m.static_bytes;
  m.statics.emplace_back(tag, offset);
  return m.current->block->arena + offset;
}
uint8_t* dynamic_shared() { return machine.current->block->arena + DYNAMIC; }
uint32_t shared_address(const void* p) {
  const auto offset = reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(machine.blocks[0].arena);
  if (offset >= (uintptr_t)ARENA * machine.cluster) fail("emu.bounds", "shared_address of a pointer that is not to shared memory", Site{});
  const uint32_t rank = offset / ARENA;
  return offset % ARENA + (machine.current->block->rank == (int)rank ? 0 : (rank + 1) * CLUSTER_BIT);
}
Block& block_of(uint32_t address) {
  const uint32_t tag = address / CLUSTER_BIT;
  return tag ? machine.blocks[tag - 1] : *machine.current->block;
}

// --------------------------------------------------------------------------------------------------------------- cp.async
// The checker marks the target as pending until the wait, whenever the bytes move.
static void land(Block& b, const Copy& c, Actor actor) {
  memcpy(b.arena + c.target, c.source, c.bytes);
  memset(b.arena + c.target + c.bytes, 0, c.size - c.bytes);
  if (!machine.check) return;
  pending_end(b, c.target, c.size);
  shared_write(b, c.target, c.size, actor, c.site);
}
void cp_async(uint32_t target, const void* source, uint32_t size, uint32_t bytes, Site site) {
  Fiber& me = *machine.current;
  if (target % size) fail("emu.misaligned", concat("cp.async of ", size, " bytes to shared address ", target), site);
  if (reinterpret_cast<uintptr_t>(source) % size)
    fail("emu.misaligned", concat("cp.async of ", size, " bytes from a source that is not aligned to them"), site);
  if (bytes > size) fail("emu.protocol", concat("cp.async of ", bytes, " bytes out of ", size), site);
  shared_bounds(*me.block, target, size, site);
  if (machine.check) {
    if (bytes) global_access(reinterpret_cast<uintptr_t>(source), bytes, false, site);
    pending_begin(*me.block, target, size, site);
  }
  const Copy copy{target, source, size, bytes, site};
  const bool late = machine.timing == Timing::late || (machine.timing == Timing::random && random_bits() % 2);
  if (late) memset(me.block->arena + target, 0xff, size);
  else {  // early: the bytes are there at once, but only the wait makes them ours
    memcpy(me.block->arena + target, source, bytes);
    memset(me.block->arena + target + bytes, 0, size - bytes);
  }
  me.copies.push_back(copy);
}
void cp_async_commit() {
  Fiber& me = *machine.current;
  me.copy_groups.emplace_back(std::move(me.copies));
  me.copies.clear();
}
void cp_async_wait(int groups) {
  Fiber& me = *machine.current;
  while ((int)me.copy_groups.size() > groups) {
    for (const Copy& c : me.copy_groups.front()) land(*me.block, c, as_self(me));
    me.copy_groups.pop_front();
  }
}
void cp_async_mbarrier_arrive(uint32_t bar, Site site) {
  Fiber& me = *machine.current;
  Block& b = *me.block;
  std::vector<Copy> copies;
  for (auto& group : me.copy_groups) copies.insert(copies.end(), group.begin(), group.end());
  copies.insert(copies.end(), me.copies.begin(), me.copies.end());
  me.copies.clear();
  for (auto& group : me.copy_groups) group.clear();
  Mbarrier& m = mbarrier_at(b, bar, site);
  const Actor actor{&me, {copies_actor(b, m), begin_copy_on(m)}};
  when_it_suits([&b, copies, bar, actor, site] {
    for (const Copy& c : copies) land(b, c, actor);
    arrive_one(b, bar, site);
  });
}

// -------------------------------------------------------------------------------------------------------------- mbarriers
Mbarrier& mbarrier_at(Block& b, uint32_t offset, Site site) {
  for (Mbarrier& m : b.mbarriers)
    if (m.offset == offset) return m;
  fail("emu.protocol", concat("an mbarrier is used before its initialisation, at shared offset ", offset), site);
}
static Mbarrier& used_mbarrier(Block& b, uint32_t offset, Site site) {
  Mbarrier& m = mbarrier_at(b, offset, site);
  if (machine.check && !known(*machine.current, m.initialised))
    fail("emu.race", concat("an mbarrier is used without a barrier after its initialisation by ", name_of_actor(m.initialised.actor)),
         site);
  return m;
}
// A copy that completes on this mbarrier: its writes are ordered before whoever waits for the phase. Returns its clock.
uint32_t begin_copy_on(Mbarrier& m) {
  ++m.copies;
  return m.phase + 1;
}
void mbarrier_init(uint32_t bar, uint32_t count, Site site) {
  Block& b = *machine.current->block;
  if (bar % 8) fail("emu.misaligned", "an mbarrier must be aligned to 8 bytes", site);
  if (count < 1 || count >= 1 << 20) fail("emu.protocol", concat("an mbarrier for ", count, " arrivals"), site);
  for (Mbarrier& m : b.mbarriers)
    if (m.offset == bar) fail("emu.protocol", "an mbarrier is initialised twice", site);
  shared_bounds(b, bar, 8, site);
  if (b.mbarriers.size() == MAX_MBARRIERS) fail("emu.protocol", concat("more than ", MAX_MBARRIERS, " mbarriers in a block"), site);
  if (b.mbarriers.empty()) b.mbarriers.reserve(MAX_MBARRIERS);  // references stay valid
  Mbarrier m{};
  m.offset = bar;
  m.count = m.pending = count;
  m.initialised = as_self(*machine.current).stamp;
  b.mbarriers.push_back(std::move(m));
}
void mbarrier_init_fence() {
  for (Block& b : machine.blocks)
    for (Mbarrier& m : b.mbarriers)
      if (m.initialised.actor == machine.current->actor) m.visible = true;
}
static void complete_if_due(Block& b, Mbarrier& m) {
  if (m.pending || m.bytes) return;
  if (machine.check) {
    if (m.copies) {
      m.open.seen.resize(actors(), 0);
      m.open.seen[copies_actor(b, m)] = m.phase + 1;
    }
    m.done = std::move(m.open);
    m.open = {};
  }
  m.copies = 0;
  m.pending = m.count;
  ++m.phase;
  for (int i = 0; i < machine.threads; ++i) {
    Fiber& f = machine.fibers[b.rank * machine.threads + i];
    if (f.state == State::mbarrier && f.waits_for == m.offset) wake(f);
  }
}
void arrive_bytes(Block& b, uint32_t bar, int64_t bytes, Site site) {
  Mbarrier& m = mbarrier_at(b, bar, site);
  m.bytes -= bytes;
  complete_if_due(b, m);
}
void arrive_one(Block& b, uint32_t bar, Site site) {
  Mbarrier& m = mbarrier_at(b, bar, site);
  if (!m.pending) fail("emu.protocol", concat("an mbarrier for ", m.count, " arrivals gets more in one phase"), site);
  --m.pending;
  complete_if_due(b, m);
}
void mbarrier_arrive(uint32_t bar, uint32_t bytes, Site site) {
  Block& b = block_of(bar);
  if (!b.live) fail("emu.protocol", concat("an arrival at an mbarrier of block ", b.rank, " of the cluster, which has exited"), site);
  Mbarrier& m = used_mbarrier(b, offset_of(bar), site);
  if (bytes >= 1 << 20) fail("emu.protocol", concat("an mbarrier phase of ", bytes, " bytes: at most 2^20 - 1"), site);
  release(*machine.current, m.open);
  m.bytes += bytes;
  arrive_one(b, m.offset, site);
}
void mbarrier_wait(uint32_t bar, uint32_t parity, Site site) {
  Fiber& me = *machine.current;
  Mbarrier& m = used_mbarrier(*me.block, bar, site);
  while ((m.phase & 1) == (parity & 1)) {
    me.waits_for = bar;
    wait_as(State::mbarrier, "mbarrier_wait", site);
  }
  acquire(me, m.done);
}
void fence_async_proxy() {
  if (machine.check) fence_async(*machine.current);
}

}  // namespace poem::emu
