// tma.cpp: the copy engine. Tensor maps, loads into one or several blocks, stores, and plain bulk copies.
#include <algorithm>

#include "machine.h"

namespace poem::emu {

// What the launcher packs into the 128 bytes of a TensorMap for this device (cupy_backend/tensor_map.py).
struct Map {
  uint64_t base;
  uint64_t strides[4];       // bytes, of all axes but the first
  uint32_t dims[5], box[5];  // elements, fastest axis first
  uint32_t rank, element, swizzle;
  uint32_t magic;
};
static_assert(sizeof(Map) <= 128, "a tensor map has 128 bytes");
constexpr uint32_t MAGIC = 0x4d454f50;

static Map read_map(const void* p, size_t coordinates, Site site) {
  Map map;
  memcpy(&map, p, sizeof map);
  if (map.magic != MAGIC) fail("emu.protocol", "a TMA operation with something that is no tensor map of this launch", site);
  if (map.rank != coordinates)
    fail("emu.protocol", concat("a tensor map of rank ", map.rank, " with ", (int)coordinates, " coordinates"), site);
  return map;
}
static uint32_t box_bytes(const Map& map) {
  uint32_t bytes = map.element;
  for (uint32_t i = 0; i < map.rank; ++i) bytes *= map.box[i];
  return bytes;
}
// Shared memory must begin where the swizzle's pattern does.
static void check_alignment(const Map& map, uint32_t offset, Site site) {
  const uint32_t pattern = map.swizzle ? map.swizzle * 8 : 128;
  if (offset % pattern)
    fail("emu.misaligned",
         concat("TMA with a ", map.swizzle, "-byte swizzle at shared offset ", offset, ": a multiple of ", pattern, " is needed"), site);
}
// Calls row(shared offset within the box, global address or 0, elements of the row that exist on the left and in all) for each row of the
// box.
template <class Row> static void for_rows(const Map& map, const int (&at)[5], Row row) {
  uint32_t rows = 1, index[5] = {};
  for (uint32_t i = 1; i < map.rank; ++i) rows *= map.box[i];
  for (uint32_t r = 0; r < rows; ++r) {
    bool inside = true;
    uint64_t address = map.base;
    for (uint32_t i = 1; i < map.rank; ++i) {
      const int64_t x = (int64_t)at[i] + index[i];
      inside = inside && x >= 0 && x < map.dims[i];
      address += x * map.strides[i - 1];
    }
    const int64_t first = std::max<int64_t>(0, -(int64_t)at[0]), last = std::min<int64_t>(map.box[0], (int64_t)map.dims[0] - at[0]);
    if (!inside || first >= last) row(r * map.box[0] * map.element, (uintptr_t)0, 0, 0);
    else row(r * map.box[0] * map.element, address + (int64_t)at[0] * map.element, first, last);
    for (uint32_t i = 1; i < map.rank && ++index[i] == map.box[i]; ++i) index[i] = 0;
  }
}
// 16-byte chunks are exchanged by bits of the address. Bytes of a chunk stay together.
static uint32_t swizzled(uint32_t swizzle, uint32_t address) {
  const uint32_t mask = swizzle == 128 ? 7 : swizzle == 64 ? 3 : swizzle == 32 ? 1 : 0;
  return address ^ (address >> 7 & mask) << 4;
}
static void load_box(const Map& map, const int (&at)[5], uint8_t* arena, uint32_t target) {
  for_rows(map, at, [&](uint32_t offset, uintptr_t source, int64_t first, int64_t last) {
    for (uint32_t x = 0; x < map.box[0] * map.element; x += 16) {
      uint8_t* to = arena + swizzled(map.swizzle, target + offset + x);
      for (uint32_t i = 0; i < 16; i += map.element) {
        const int64_t e = (x + i) / map.element;
        if (e >= first && e < last) memcpy(to + i, reinterpret_cast<const void*>(source + x + i), map.element);
        else memset(to + i, 0, map.element);
      }
    }
  });
}
static void check_source(const Map& map, const int (&at)[5], bool write, Site site) {
  for_rows(map, at, [&](uint32_t, uintptr_t address, int64_t first, int64_t last) {
    if (last > first) global_access(address + first * map.element, (last - first) * map.element, write, site);
  });
}

// The checker's side of a copy into shared memory that completes on an mbarrier: written from now on, by nobody who has been waited for.
static void announce(Block& b, Mbarrier& m, uint32_t offset, uint32_t bytes, Site site) {
  if (!b.live) fail("emu.protocol", concat("a copy into block ", b.rank, " of the cluster, which has exited"), site);
  shared_bounds(b, offset, bytes, site);
  if (machine.check) {
    if (!m.visible)
      fail("emu.fence", "a copy signals an mbarrier whose initialisation was not made visible: mbarrier_init_fence is missing", site);
    shared_write(b, offset, bytes, {machine.current, {copies_actor(b, m), begin_copy_on(m)}, true}, site);
  }
  memset(b.arena + offset, 0xff, bytes);
}
void tma_load(uint32_t target, const void* map_pointer, uint32_t bar, std::initializer_list<int> coordinates, uint16_t blocks, Site site) {
  const Map map = read_map(map_pointer, coordinates.size(), site);
  int at[5] = {};
  std::copy(coordinates.begin(), coordinates.end(), at);
  const uint32_t offset = offset_of(target), bytes = box_bytes(map);
  check_alignment(map, offset, site);
  if (machine.check) check_source(map, at, false, site);
  if (!blocks) blocks = 1 << block_of(target).rank;
  if (blocks >> machine.cluster)
    fail("emu.bounds", concat("multicast to blocks ", (int)blocks, " (bits) of a cluster of ", machine.cluster), site);
  for (int r = 0; r < machine.cluster; ++r) {
    if (!(blocks >> r & 1)) continue;
    Block& b = machine.blocks[r];
    announce(b, mbarrier_at(b, offset_of(bar), site), offset, bytes, site);
    when_it_suits([&b, map, at0 = at[0], at1 = at[1], at2 = at[2], offset, bytes, bar, site] {
      const int where[5] = {at0, at1, at2};
      load_box(map, where, b.arena, offset);
      arrive_bytes(b, offset_of(bar), bytes, site);
    });
  }
}
void bulk_load(uint32_t target, const void* source, uint32_t bytes, uint32_t bar, Site site) {
  Block& b = block_of(target);
  const uint32_t offset = offset_of(target);
  const auto address = reinterpret_cast<uintptr_t>(source);
  if (offset % 16 || address % 16 || bytes % 16 || !bytes)
    fail("emu.misaligned", "a bulk copy needs addresses and a size that are multiples of 16", site);
  if (machine.check) global_access(address, bytes, false, site);
  announce(b, mbarrier_at(b, offset_of(bar), site), offset, bytes, site);
  when_it_suits([&b, offset, source, bytes, bar, site] {
    memcpy(b.arena + offset, source, bytes);
    arrive_bytes(b, offset_of(bar), bytes, site);
  });
}

// ------------------------------------------------------------------------------------------------------------------ stores
// A store reads shared memory between its issue and the wait; late means at the wait.
static void issue(uint32_t offset, uint32_t bytes, std::function<void()> run, Site site) {
  Fiber& me = *machine.current;
  Block& b = *me.block;
  shared_bounds(b, offset, bytes, site);
  if (machine.check) {
    Fiber* viewer = &me;
    async_read_begin(b, offset, bytes, &viewer, 1, "a bulk store", site);
  }
  Store store;
  store.finish = [&b, &me, offset, bytes] {
    if (machine.check) async_read_end(b, offset, bytes, as_self(me).stamp);
  };
  const bool late = machine.timing == Timing::late || (machine.timing == Timing::random && random_bits() % 2);
  if (late) store.run = std::move(run);
  else {
    run();
    store.run = [] {};
  }
  me.stores.push_back(std::move(store));
}
void tma_store(const void* map_pointer, uint32_t source, std::initializer_list<int> coordinates, Site site) {
  const Map map = read_map(map_pointer, coordinates.size(), site);
  int at[5] = {};
  std::copy(coordinates.begin(), coordinates.end(), at);
  check_alignment(map, source, site);
  if (machine.check) check_source(map, at, true, site);
  uint8_t* arena = machine.current->block->arena;
  issue(
      source, box_bytes(map),
      [map, at0 = at[0], at1 = at[1], at2 = at[2], arena, source] {
        const int where[5] = {at0, at1, at2};
        for_rows(map, where, [&](uint32_t offset, uintptr_t target, int64_t first, int64_t last) {
          for (int64_t e = first; e < last; ++e)
            memcpy(reinterpret_cast<void*>(target + e * map.element), arena + swizzled(map.swizzle, source + offset + e * map.element),
                   map.element);
        });
      },
      site);
}
void bulk_store(void* target, uint32_t source, uint32_t bytes, Site site) {
  const auto address = reinterpret_cast<uintptr_t>(target);
  if (source % 16 || address % 16 || bytes % 16 || !bytes)
    fail("emu.misaligned", "a bulk copy needs addresses and a size that are multiples of 16", site);
  if (machine.check) global_access(address, bytes, true, site);
  uint8_t* arena = machine.current->block->arena;
  issue(source, bytes, [target, source, bytes, arena] { memcpy(target, arena + source, bytes); }, site);
}
void bulk_commit() {
  Fiber& me = *machine.current;
  me.store_groups.emplace_back(std::move(me.stores));
  me.stores.clear();
}
void bulk_wait(int groups) {
  Fiber& me = *machine.current;
  while ((int)me.store_groups.size() > groups) {
    for (Store& s : me.store_groups.front()) {
      s.run();
      s.finish();
    }
    me.store_groups.pop_front();
  }
}

}  // namespace poem::emu
