// check_global.cpp: every access to global memory against the arguments of the launch, and the hooks through which accesses arrive.
//
// Blocks may run in any order, so no block may touch what another one wrote in the same launch, unless it learned of it: a block's life is
// cut into intervals, a release (an atomic after __threadfence, or one with release semantics) ends one, and who acquires through the same
// address knows the intervals that were published there. Threads of one block are ordered as for shared memory, by happens_before.cpp.
#include <algorithm>
#include <dlfcn.h>

#include "machine.h"

namespace poem::emu {

constexpr uint32_t SEVERAL = ~0u;

// ---------------------------------------------------------------------------------------------------------------- wording
// `out`[7, 4088]: which element of the argument, row-major.
static std::string element(const Range& r, uintptr_t address) {
  uint64_t index = (address - r.low) * 8 / r.element_bits;
  std::vector<uint64_t> at(r.shape.size());
  for (size_t axis = r.shape.size(); axis-- > 0;) {
    const uint64_t extent = axis ? std::max<uint64_t>(r.shape[axis], 1) : ~0ull;  // the first axis runs on past its end
    at[axis] = index % extent;
    index /= extent;
  }
  std::string text = concat("`", r.name, "`[");
  for (size_t axis = 0; axis < at.size(); ++axis) text += concat(axis ? ", " : "", at[axis]);
  return text + "]";
}
static std::string shape_of(const Range& r) {
  std::string text = "[";
  for (size_t axis = 0; axis < r.shape.size(); ++axis) text += concat(axis ? ", " : "", r.shape[axis]);
  return concat(text, "] ", r.dtype);
}
static std::string outside(uintptr_t address, uint32_t bytes, bool write) {
  const std::string what = concat(write ? "write" : "read", " of ", bytes, " bytes ");
  const Range* nearest = nullptr;
  uint64_t distance = ~0ull;
  for (const Range& r : machine.ranges) {
    const uint64_t d = address >= r.low ? address + bytes - r.high : r.low - address;
    if (d < distance) {
      distance = d;
      nearest = &r;
    }
  }
  if (!nearest || distance > 1 << 24) return concat(what, "outside every argument");
  if (address < nearest->low) return concat(what, "before the start of `", nearest->name, "`, by ", nearest->low - address, " bytes");
  return concat(what, "past the end of `", nearest->name, "` ", shape_of(*nearest), ", at ", element(*nearest, address));
}

// -------------------------------------------------------------------------------------------------------------- intervals
void next_interval(Block& b) {
  machine.interval_block.push_back(b.number);
  b.interval = machine.interval_block.size() - 1;
}
static uint32_t block_of_interval(uint32_t interval) { return machine.interval_block[interval]; }
static bool known_interval(const Block& b, uint32_t interval) {
  const uint32_t owner = block_of_interval(interval);
  if (owner == b.number) return true;
  for (auto& [block, until] : b.acquired)
    if (block == owner && interval <= until) return true;
  return false;
}
// Adds to the known intervals, sorted by block, those of others: the latest of each block.
using Intervals = std::vector<std::pair<uint32_t, uint32_t>>;
static void learn(Intervals& known, const Intervals& others) {
  Intervals both(known.size() + others.size());
  std::merge(known.begin(), known.end(), others.begin(), others.end(), both.begin());
  known.clear();
  for (auto& each : both)
    if (!known.empty() && known.back().first == each.first) known.back() = each;
    else known.push_back(each);
}
void thread_fence() {
  Block& b = *machine.current->block;
  b.fenced_writes = true;
  learn(b.acquired, b.heard);
  b.heard.clear();
}
void order_cluster() {
  for (int i = 0; i < machine.cluster; ++i)
    for (int j = 0; j < machine.cluster; ++j)
      if (i != j) learn(machine.blocks[i].acquired, {{machine.blocks[j].number, machine.blocks[j].interval}});
  for (int i = 0; i < machine.cluster; ++i) next_interval(machine.blocks[i]);
}
static void publish(Block& b, uintptr_t address) {
  auto& here = machine.published[address];
  learn(here, {{b.number, b.interval}});
  learn(here, b.acquired);
  next_interval(b);
}

// ------------------------------------------------------------------------------------------------------------------ ranges
static Range* range_of(uintptr_t address, uint32_t bytes) {
  for (Range& r : machine.ranges)
    if (address >= r.low && address + bytes <= r.high) return &r;
  return nullptr;
}
static Range& checked_range(uintptr_t address, uint32_t bytes, bool write, Place place) {
  Range* r = range_of(address, bytes);
  if (!r) fail("emu.bounds", outside(address, bytes, write), place);
  if (write && (r->direction == Direction::read || r->direction == Direction::constant))
    fail("emu.read-only", concat("write to ", element(*r, address), ", which this launch only reads"), place);
  if (machine.overlaps && !machine.current->dependency_waited && r->direction != Direction::constant)
    fail("emu.dependency",
         concat(write ? "write to " : "read of ", element(*r, address),
                " before grid_dependency_wait, in a launch that overlaps its predecessor"),
         place);
  return *r;
}
static std::string thread_of(Stamp s) { return concat("thread ", s.actor % machine.threads); }
// Another thread of the same block, with nothing that orders the two accesses.
static void check_order(const Range& r, size_t i, bool write, Place place) {
  const Block& b = *machine.current->block;
  const Fiber& me = *machine.current;
  const char* const what = write ? "write to " : "read of ";
  if (r.writer[i] && block_of_interval(r.writer[i]) == b.number && !known(me, r.write[i]))
    fail("emu.race", concat(what, element(r, r.low + i), ", which ", thread_of(r.write[i]), " wrote, with no barrier between"), place);
  if (!write || !r.reader[i] || block_of_interval(r.reader[i]) != b.number) return;
  const Stamp* unknown = known(me, r.read[i]) ? nullptr : &r.read[i];
  if (const auto more = r.more_reads.find(i); more != r.more_reads.end())
    for (const Stamp& s : more->second)
      if (!known(me, s)) unknown = &s;
  if (unknown)
    fail("emu.race", concat(what, element(r, r.low + i), ", which ", thread_of(*unknown), " reads, with no barrier between"), place);
}
static void remember_read(Range& r, size_t i) {
  const Block& b = *machine.current->block;
  const Stamp mine = as_self(*machine.current).stamp;
  if (r.reader[i] && block_of_interval(r.reader[i]) == b.number && !known(*machine.current, r.read[i])) {
    auto& more = r.more_reads[i];
    if (more.empty() || more.back().actor != r.read[i].actor) more.push_back(r.read[i]);
  }
  r.read[i] = mine;
}
static void use(Range& r, uintptr_t address, uint32_t bytes, bool write, Place place) {
  Block& b = *machine.current->block;
  for (uintptr_t i = address - r.low; i < address - r.low + bytes; ++i) {
    if (!r.writer.empty()) {
      uint32_t& writer = r.writer[i];
      uint32_t& reader = r.reader[i];
      if (writer && !known_interval(b, writer))
        fail("emu.conflict",
             concat(write ? "write to " : "read of ", element(r, r.low + i), ", which block ", block_of_interval(writer),
                    " writes in the same launch"),
             place);
      if (write && reader && (reader == SEVERAL || !known_interval(b, reader)))
        fail("emu.conflict",
             concat("write to ", element(r, r.low + i), ", which ",
                    reader == SEVERAL ? std::string("several blocks read") : concat("block ", block_of_interval(reader), " reads"),
                    " in the same launch"),
             place);
      check_order(r, i, write, place);
      if (write) {
        writer = b.interval;
        reader = 0;
        r.write[i] = as_self(*machine.current).stamp;
        if (!r.more_reads.empty()) r.more_reads.erase(i);
      } else if (reader == 0 || (reader != SEVERAL && block_of_interval(reader) == b.number)) {
        remember_read(r, i);
        reader = b.interval;
      } else {
        reader = SEVERAL;
      }
    }
    if (!r.written.empty()) {
      if (write) r.written[i] = 1;
      else if (!r.written[i]) fail("emu.unwritten", concat("read of ", element(r, r.low + i), ", which nobody has written"), place);
    }
  }
}
void global_access(uintptr_t address, uint32_t bytes, bool write, Place place) {
  use(checked_range(address, bytes, write, place), address, bytes, write, place);
}
void check_constant(const void* p, size_t bytes, Site site) {
  if (!machine.check) return;
  const auto address = reinterpret_cast<uintptr_t>(p);
  if (address % bytes) fail("emu.misaligned", concat("load of ", bytes, " bytes from an address that is not aligned to them"), site);
  Range* r = range_of(address, bytes);
  if (r && !r->writer.empty())
    fail("emu.read-only",
         concat("load_constant and load_streaming are for memory that the launch does not write, and it writes `", r->name, "`"), site);
}
bool outputs_complete() {
  for (const Range& r : machine.ranges) {
    if (r.direction != Direction::write) continue;
    const auto missing = std::find(r.written.begin(), r.written.end(), 0);
    if (missing == r.written.end()) continue;
    machine.error = {
        "emu.incomplete", concat(element(r, r.low + (missing - r.written.begin())), " of ", shape_of(r), " was never written"), "", {}, -1};
    return false;
  }
  return true;
}

// ----------------------------------------------------------------------------------------------------------------- atomics
void grid_dependency_wait() { machine.current->dependency_waited = true; }
void atomic_begin(const void* p, size_t bytes, MemoryOrder order, bool writes, Site site) {
  Machine& m = machine;
  if (!m.check) return;
  const auto address = reinterpret_cast<uintptr_t>(p);
  if (address % bytes) fail("emu.misaligned", concat("atomic of ", bytes, " bytes at an address that is not aligned to them"), site);
  m.muted = true;
  const uintptr_t offset = address - reinterpret_cast<uintptr_t>(m.blocks[0].arena);
  if (offset < (uintptr_t)ARENA * m.cluster) {
    shared_atomic(m.blocks[offset / ARENA], offset % ARENA, bytes, site);
    return;
  }
  Block& b = *m.current->block;
  Range& r = checked_range(address, bytes, writes, site);
  for (size_t i = 0; i < bytes && !r.written.empty(); ++i)
    if (!r.written[address - r.low + i])
      fail("emu.unwritten", concat("atomic on ", element(r, address), ", which nobody has written"), site);
  // The release comes first, so that what this access publishes is not what it acquires.
  const auto heard = m.published[address];
  if (order == MemoryOrder::release || order == MemoryOrder::both || (order == MemoryOrder::relaxed && writes && b.fenced_writes)) {
    publish(b, address);
    b.fenced_writes = false;
  }
  learn(order == MemoryOrder::acquire || order == MemoryOrder::both ? b.acquired : b.heard, heard);
}
void atomic_end() { machine.muted = false; }

// ------------------------------------------------------------------------------------------------------------------- hooks
void on_access(const void* p, uint32_t bytes, bool write, Place place) {
  Machine& m = machine;
  if (!m.current || !m.check || m.muted) return;
  Fiber& me = *m.current;
  const auto address = reinterpret_cast<uintptr_t>(p), stack = reinterpret_cast<uintptr_t>(me.stack);
  if (address < stack && stack - address <= NEAR_STACK) fail("emu.stack", "a thread uses more than 64 KB of local memory", place);
  if (address - stack < STACK) {
    const Warpgroup& w = me.block->warpgroups[me.id / 128];
    if (!w.open.empty() || !w.groups.empty()) watch_accumulators(p, bytes, write, place);
    return;
  }
  if (address - reinterpret_cast<uintptr_t>(&built_ins) < sizeof built_ins) return;
  const uintptr_t offset = address - reinterpret_cast<uintptr_t>(m.blocks[0].arena);
  if (offset < (uintptr_t)ARENA * MAX_CLUSTER) {
    const int rank = offset / ARENA;
    Block& b = m.blocks[rank];
    if (rank >= m.cluster) fail("emu.bounds", "access past the shared memory of the cluster", place);
    if (!b.live) fail("emu.protocol", concat("access to shared memory of block ", rank, " of the cluster, which has exited"), place);
    return write ? shared_write(b, offset % ARENA, bytes, as_self(me), place) : shared_read(b, offset % ARENA, bytes, as_self(me), place);
  }
  if (!range_of(address, bytes)) {
    Dl_info info;
    if (dladdr(p, &info) && info.dli_fname) return;  // a constant of the kernel's own code
  }
  global_access(address, bytes, write, place);
}

}  // namespace poem::emu

// g++ -fsanitize=thread calls these for every load and store. They take the place of its runtime library, which is not linked.
using poem::emu::on_access;
static void aligned_access(const void* p, uint32_t bytes, bool write, const void* pc) {
  if (poem::emu::machine.check && poem::emu::machine.current && reinterpret_cast<uintptr_t>(p) % bytes)
    poem::emu::fail("emu.misaligned",
                    poem::emu::concat(write ? "write" : "read", " of ", bytes, " bytes at an address that is not aligned to them"), pc);
  on_access(p, bytes, write, pc);
}
extern "C" {
#define POEM_HOOKS(n)                                                                             \
  void __tsan_read##n(void* p) { aligned_access(p, n, false, __builtin_return_address(0)); }      \
  void __tsan_write##n(void* p) { aligned_access(p, n, true, __builtin_return_address(0)); }      \
  void __tsan_unaligned_read##n(void* p) { on_access(p, n, false, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##n(void* p) { on_access(p, n, true, __builtin_return_address(0)); }
// clang-format off
POEM_HOOKS(1) POEM_HOOKS(2) POEM_HOOKS(4) POEM_HOOKS(8) POEM_HOOKS(16)
// clang-format on
#undef POEM_HOOKS
    void __tsan_read_range(void* p, size_t n) {
  on_access(p, n, false, __builtin_return_address(0));
}
void __tsan_write_range(void* p, size_t n) { on_access(p, n, true, __builtin_return_address(0)); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
// Called, by -fsanitize=bounds-strict, where an index is outside the array it is applied to: threads' own arrays are not watched otherwise.
struct ArrayUse {
  const char* file;
  uint32_t line, column;
  const char* type;  // after two numbers of 16 bits, its name
};
void __ubsan_handle_out_of_bounds(ArrayUse* use, void* index) {
  if (!poem::emu::machine.current) return;
  poem::emu::fail("emu.bounds", poem::emu::concat("index ", (long long)index, " of an array ", use->type + 4),
                  poem::emu::Site{use->file, (int)use->line});
}
// Called, by -fsanitize=alignment and object-size, where a pointer to a type is not aligned as the type is, or points to less than it:
// loads of vectors may be split before they are counted, and threads' own arrays are not watched.
struct PointerUse {
  const char* file;
  uint32_t line, column;
  const char* type;  // after two numbers of 16 bits, its name
  uint8_t log_alignment, kind;
};
void __ubsan_handle_type_mismatch_v1(PointerUse* use, void* pointer) {
  const auto alignment = (uintptr_t)1 << use->log_alignment;
  const bool misaligned = reinterpret_cast<uintptr_t>(pointer) % alignment;
  const std::string what =
      poem::emu::concat("an access through a pointer to ", use->type + 4, ", which ",
                        misaligned ? poem::emu::concat("must be aligned to ", alignment, " bytes") : "points past a variable");
  poem::emu::fail(misaligned ? "emu.misaligned" : "emu.bounds", what, poem::emu::Site{use->file, (int)use->line});
}
}
