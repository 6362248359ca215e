// collectives.cpp: what threads do together. Block, warp, named and cluster barriers, shuffles and votes, register budgets.
#include "machine.h"

namespace poem::emu {

static bool same_place(Site a, Site b) { return a.line == b.line && !strcmp(a.file, b.file); }

// ---------------------------------------------------------------------------------------------------------- block barrier
static void release_block(Block& b) {
  ++machine.statistics.barriers;
  b.waiting = 0;
  b.reduced_any = b.any;
  b.reduced_count = b.count;
  b.any = b.count = 0;
  if (machine.check) next_epoch(b);
  for (int i = 0; i < machine.threads; ++i) {
    Fiber& f = machine.fibers[b.rank * machine.threads + i];
    if (f.state == State::block_barrier) wake(f);
  }
}
int block_barrier(Reduce reduce, int predicate, Site site) {
  Fiber& me = *machine.current;
  Block& b = *me.block;
  if (!b.waiting) b.barrier_site = site;
  else if (!same_place(b.barrier_site, site))
    fail("emu.divergence", concat("__syncthreads is reached at two places; other threads wait at ", text_of(b.barrier_site)), site);
  b.any |= predicate != 0;
  b.count += predicate != 0;
  if (b.live != machine.threads) fail("emu.divergence", "__syncthreads after some threads of the block exited", site);
  if (++b.waiting == b.live) release_block(b);
  else wait_as(State::block_barrier, "__syncthreads", site);
  switch (reduce) {
    case Reduce::any:
      return b.reduced_any;
    case Reduce::all:
      return b.reduced_count == machine.threads;
    case Reduce::count:
      return b.reduced_count;
    default:
      return 0;
  }
}

// A thread is done: what others may still expect of it is an error.
void leave(Fiber& f) {
  Block& b = *f.block;
  --b.live;
  if (b.waiting) fail("emu.divergence", concat("a thread exits while ", b.waiting, " others wait in __syncthreads"), b.barrier_site);
  if (!f.stores.empty() || !f.store_groups.empty())
    fail("emu.protocol", "a thread exits before its bulk stores have read shared memory: bulk_commit and bulk_wait_read<0> are missing",
         f.site);
  --machine.cluster_live;
}

// ----------------------------------------------------------------------------------------------------------------- warps
static size_t join(unsigned mask, const char* operation, Site site) {
  Fiber& me = *machine.current;
  auto& all = me.block->collectives[me.warp];
  ++machine.statistics.collectives;
  if (!(mask >> me.lane & 1)) fail("emu.divergence", concat(operation, ": the calling lane is not in its mask"), site);
  size_t unused = all.size();
  for (size_t i = 0; i < all.size(); ++i) {
    Collective& c = all[i];
    if (c.arrived != c.mask && c.mask & mask) {
      if (c.mask != mask || (c.operation != operation && strcmp(c.operation, operation)))
        fail("emu.divergence", concat("lanes of a warp diverge: ", operation, " meets ", c.operation, " of other lanes"), site);
      return i;
    }
    if (!c.left) unused = i;
  }
  if (unused == all.size()) all.emplace_back();
  Collective& c = all[unused];
  c.mask = mask;
  c.arrived = 0;
  c.left = __builtin_popcount(mask);
  c.operation = operation;
  return unused;
}
size_t deposit(unsigned mask, const char* operation, const void* in, size_t bytes, Site site) {
  Fiber& me = *machine.current;
  const size_t which = join(mask, operation, site);
  Collective& c = me.block->collectives[me.warp][which];
  memcpy(c.slots[me.lane], in, bytes);
  c.arrived |= 1u << me.lane;
  return which;
}
void wake_lanes(unsigned mask) {
  Fiber* const first = machine.current - machine.current->lane;
  for (int lane = 0; lane < 32; ++lane)
    if (first + lane != machine.current && mask >> lane & 1) wake(first[lane]);
}
void warp_barrier(unsigned mask, Site site) {
  Fiber* first = machine.current - machine.current->lane;
  char none = 0;
  collective(
      mask, "__syncwarp", &none, 0, &none, 0,
      [first, mask](Collective&) {
        if (!machine.check) return;
        Knowledge all;
        for (int l = 0; l < 32; ++l)
          if (mask >> l & 1) release(first[l], all);
        for (int l = 0; l < 32; ++l)
          if (mask >> l & 1) acquire(first[l], all);
      },
      site);
}
uint64_t shuffle(Shuffle kind, unsigned mask, uint64_t value, int argument, int width, Site site) {
  static const char* const names[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync"};
  struct Slot {
    uint64_t value;
    int argument, width;
  } in{value, argument, width};
  uint64_t out;
  collective(
      mask, names[(int)kind], &in, sizeof in, &out, sizeof out,
      [kind, mask, site](Collective& c) {
        Slot given[32];
        for (int l = 0; l < 32; ++l) memcpy(&given[l], c.slots[l], sizeof(Slot));
        for (int l = 0; l < 32; ++l) {
          if (!(mask >> l & 1)) continue;
          const int width = given[l].width, base = l & ~(width - 1), by = given[l].argument;
          int from = kind == Shuffle::index  ? base + (by & (width - 1))
                     : kind == Shuffle::up   ? l - by
                     : kind == Shuffle::down ? l + by
                                             : l ^ by;
          if (from < base || from >= base + width) from = l;
          if (!(mask >> from & 1)) fail("emu.divergence", concat("a shuffle reads lane ", from, ", which is not in its mask"), site);
          memcpy(c.slots[l], &given[from].value, 8);
        }
      },
      site);
  return out;
}
unsigned ballot(unsigned mask, bool predicate, Site site) {
  unsigned in = predicate, out;
  collective(
      mask, "a vote", &in, sizeof in, &out, sizeof out,
      [mask](Collective& c) {
        unsigned all = 0, one;
        for (int l = 0; l < 32; ++l)
          if (mask >> l & 1) {
            memcpy(&one, c.slots[l], sizeof one);
            all |= one << l;
          }
        for (auto& slot : c.slots) memcpy(slot, &all, sizeof all);
      },
      site);
  return out;
}
bool elect_lane(Site site) {
  ballot(~0u, true, site);
  return machine.current->lane == 0;
}

// --------------------------------------------------------------------------------------------------------- named barriers
static void arrive_at(NamedBarrier& b, int id, int threads, Site site) {
  if (id < 1 || id > 15) fail("emu.protocol", concat("named barriers are 1 to 15, this is ", id), site);
  if (threads % 32 || threads < 32 || threads > machine.threads)
    fail("emu.protocol", concat("a named barrier for ", threads, " threads: a multiple of 32 within the block is needed"), site);
  if (!b.arrived) {
    b.need = threads;
    b.knows = {};
  } else if (b.need != threads) {
    fail("emu.divergence", concat("named barrier ", id, " is for ", threads, " threads here and for ", b.need, " elsewhere"), site);
  }
  release(*machine.current, b.knows);
  ++b.arrived;
}
static void complete(NamedBarrier& b, uint32_t id) {
  b.arrived = 0;
  for (int i = 0; i < machine.threads; ++i) {
    Fiber& f = machine.fibers[machine.current->block->rank * machine.threads + i];
    if (f.state == State::named_barrier && f.waits_for == id) {
      acquire(f, b.knows);
      wake(f);
    }
  }
}
void barrier_sync(int id, int threads, Site site) {
  Fiber& me = *machine.current;
  NamedBarrier& b = me.block->named[id & 15];
  arrive_at(b, id, threads, site);
  if (b.arrived < threads) {
    me.waits_for = id;
    wait_as(State::named_barrier, "barrier_sync", site);
  } else {
    acquire(me, b.knows);
    complete(b, id);
  }
}
void barrier_arrive(int id, int threads, Site site) {
  NamedBarrier& b = machine.current->block->named[id & 15];
  arrive_at(b, id, threads, site);
  if (b.arrived == threads) complete(b, id);
}

// --------------------------------------------------------------------------------------------------------------- clusters
uint32_t cluster_rank() { return machine.current->block->rank; }
uint32_t cluster_size() { return machine.cluster; }
static void check_rank(uint32_t rank, Site site) {
  if (rank >= (uint32_t)machine.cluster) fail("emu.bounds", concat("block ", rank, " of a cluster of ", machine.cluster), site);
}
void* cluster_pointer(const void* p, uint32_t rank) {
  check_rank(rank, {});
  return machine.blocks[rank].arena + offset_of(shared_address(p));
}
uint32_t cluster_address(uint32_t address, uint32_t rank) {
  check_rank(rank, {});
  return (rank + 1) * CLUSTER_BIT + offset_of(address);
}
void cluster_arrive(Site site) {
  Machine& m = machine;
  Fiber& me = *m.current;
  if (me.cluster_arrived) fail("emu.protocol", "cluster_arrive twice without cluster_wait between", site);
  if ((int)m.cluster_live != m.threads * m.cluster) fail("emu.divergence", "cluster_arrive after some threads of the cluster exited", site);
  me.cluster_arrived = true;
  me.cluster_phase = m.cluster_phase;
  release(me, m.cluster_open);
  if (++m.cluster_arrived < m.cluster_live) return;
  m.cluster_arrived = 0;
  ++m.cluster_phase;
  m.cluster_done = std::move(m.cluster_open);
  m.cluster_open = {};
  if (m.check) order_cluster();
  for (int i = 0; i < m.threads * m.cluster; ++i)  // beyond lie fibers of earlier launches, in whatever state they were left
    if (m.fibers[i].state == State::cluster_barrier) wake(m.fibers[i]);
}
void cluster_wait(Site site) {
  Fiber& me = *machine.current;
  if (!me.cluster_arrived) fail("emu.protocol", "cluster_wait without cluster_arrive", site);
  while (machine.cluster_phase == me.cluster_phase) wait_as(State::cluster_barrier, "cluster_wait", site);
  me.cluster_arrived = false;
  acquire(me, machine.cluster_done);
}

// -------------------------------------------------------------------------------------------------------------- registers
void set_registers(int count, Site site) {
  Fiber& me = *machine.current;
  constexpr int FILE = 64 << 10;  // registers of a multiprocessor
  char none = 0;
  collective(~0u, "setmaxnreg", &none, 0, &none, 0, [](Collective&) {}, site);
  me.block->warpgroups[me.id / 128].registers = count;
  int total = 0;
  for (int g = 0; g < machine.threads / 128; ++g) {
    const int asked = me.block->warpgroups[g].registers;
    if (!asked) return;  // its budget is the compiler's choice
    total += 128 * asked;
  }
  if (total > FILE) fail("emu.protocol", concat("the warpgroups ask for ", total, " registers together, and there are ", FILE), site);
}

}  // namespace poem::emu
