// launch.cpp: runs a grid, cluster by cluster. What cupy_backend/emulator.py calls.
#include <algorithm>

#include "machine.h"

namespace poem::emu {

struct Options {
  int32_t order, timing, check, fp8_bits, overlaps;
  uint32_t cluster[3];
  uint64_t seed;
};
struct Argument {
  void* pointer;
  uint64_t bytes;
  int32_t direction, rank;
  const uint64_t* shape;
  uint32_t element_bits;
  const char *name, *dtype;
};

static void declare(const Argument* arguments, int count) {
  Machine& m = machine;
  m.ranges.clear();
  for (int i = 0; m.check && i < count; ++i) {
    const Argument& a = arguments[i];
    const auto low = reinterpret_cast<uintptr_t>(a.pointer);
    Range r{low, low + a.bytes, (Direction)a.direction, a.name, {a.shape, a.shape + a.rank}, a.element_bits, a.dtype, {}, {}, {}, {}, {},
            {}};
    if (r.direction == Direction::write || r.direction == Direction::scratch) r.written.assign(a.bytes, 0);
    if (r.direction != Direction::read && r.direction != Direction::constant) {
      r.writer.assign(a.bytes, 0);
      r.reader.assign(a.bytes, 0);
      r.write.assign(a.bytes, {});
      r.read.assign(a.bytes, {});
    }
    m.ranges.push_back(std::move(r));
  }
}
static void begin_block(Block& b, int rank, uint3 index) {
  Machine& m = machine;
  const dim3 &grid = built_ins.grid_dim, &dim = built_ins.block_dim;
  b.rank = rank;
  b.index = index;
  b.number = index.x + grid.x * (index.y + grid.y * index.z);
  b.live = m.threads;
  b.waiting = b.any = b.count = 0;
  for (auto& warp : b.collectives) warp.clear();
  b.mbarriers.clear();
  for (auto& named : b.named) named = {};
  for (int g = 0; g < (m.threads + 127) / 128; ++g) {
    Warpgroup& w = b.warpgroups[g];
    w.arrived = w.registers = 0;
    w.open.clear();
    w.groups.clear();
    w.clock = 0;
    std::fill(std::begin(w.results_at), std::end(w.results_at), nullptr);
  }
  b.epoch = b.epoch_start = 1;
  b.learned = b.fenced_writes = false;
  b.base = {};
  b.many_readers.clear();
  b.acquired.clear();
  b.heard.clear();
  next_interval(b);
  memset(b.arena, 0xff, DYNAMIC + m.dynamic_bytes);  // NaN: what was not written shows in the result
  for (int i = 0; i < m.threads; ++i) {
    Fiber& f = m.fibers[rank * m.threads + i];
    f.block = &b;
    f.id = i;
    f.lane = i % 32;
    f.warp = i / 32;
    f.actor = rank * m.threads + i;
    f.thread = {i % dim.x, i / dim.x % dim.y, i / (dim.x * dim.y)};
    f.site = {};
    f.copies.clear();
    f.copy_groups.clear();
    f.stores.clear();
    f.store_groups.clear();
    f.cluster_arrived = f.dependency_waited = f.wgmma_fenced = false;
    f.clock = 1;
    f.epoch = 0;
    start(f);
  }
}
// Who waits where, when nobody can go on.
static std::string deadlock() {
  const Machine& m = machine;
  const int count = m.threads * m.cluster;
  const auto alike = [](const Fiber& a, const Fiber& b) {
    return a.block == b.block && a.state == b.state && (a.state == State::done || a.site.line == b.site.line);
  };
  std::string text = "deadlock:";
  for (int first = 0, last; first < count; first = last + 1) {
    const Fiber& f = m.fibers[first];
    for (last = first; last + 1 < count && alike(f, m.fibers[last + 1]); ++last) {
    }
    text += concat(first ? "; " : " ",
                   f.id == m.fibers[last].id ? concat("thread ", f.id) : concat("threads ", f.id, " to ", m.fibers[last].id),
                   m.cluster > 1 ? concat(" of block ", f.block->rank, " of the cluster") : std::string(),
                   f.state == State::done ? std::string(": exited") : concat(": in ", f.operation, " at ", text_of(f.site)));
  }
  return text;
}
static void run_cluster(uint3 corner, const uint32_t* cluster) {
  Machine& m = machine;
  ++m.generation;
  m.head = m.tail = 0;
  m.in_flight.clear();
  m.cluster_arrived = m.cluster_phase = 0;
  m.cluster_live = m.threads * m.cluster;
  m.cluster_open = m.cluster_done = {};
  m.muted = false;
  int rank = 0;
  for (uint32_t z = 0; z < cluster[2]; ++z)
    for (uint32_t y = 0; y < cluster[1]; ++y)
      for (uint32_t x = 0; x < cluster[0]; ++x, ++rank) begin_block(m.blocks[rank], rank, {corner.x + x, corner.y + y, corner.z + z});
  run_ready();
  if (m.cluster_live) fail("emu.deadlock", deadlock(), Site{});
}
static void run_grid(const uint32_t* cluster) {
  Machine& m = machine;
  const dim3& grid = built_ins.grid_dim;
  std::vector<uint3> corners;
  for (uint32_t z = 0; z < grid.z; z += cluster[2])
    for (uint32_t y = 0; y < grid.y; y += cluster[1])
      for (uint32_t x = 0; x < grid.x; x += cluster[0]) corners.push_back({x, y, z});
  if (m.order == Turns::lifo) std::reverse(corners.begin(), corners.end());
  if (m.order == Turns::random)
    for (size_t i = corners.size(); i > 1; --i) std::swap(corners[i - 1], corners[random_bits() % i]);
  for (const uint3& corner : corners) run_cluster(corner, cluster);
}

}  // namespace poem::emu

using namespace poem::emu;
extern "C" {
// 0, or 1 with the error to be read by poem_error.
int poem_launch(Entry entry, const uint32_t* grid, const uint32_t* block, uint32_t dynamic_bytes, void** pointers, const Options* options,
                const Argument* arguments, int count, Statistics* statistics) {
  Machine& m = machine;
  m.order = (Turns)options->order;
  m.timing = (Timing)options->timing;
  m.check = options->check;
  m.fp8_bits = options->fp8_bits;
  m.overlaps = options->overlaps;
  m.random = options->seed * 0x9e3779b97f4a7c15ull | 1;
  m.entry = entry;
  m.arguments = pointers;
  m.dynamic_bytes = dynamic_bytes;
  m.static_bytes = 0;
  m.statics.clear();
  m.published.clear();
  m.interval_block.assign(1, 0);  // interval 0 is nobody's
  m.statistics = {};
  m.error = {};
  m.failed = false;
  m.current = nullptr;
  built_ins.grid_dim = {grid[0], grid[1], grid[2]};
  built_ins.block_dim = {block[0], block[1], block[2]};
  m.threads = block[0] * block[1] * block[2];
  m.cluster = options->cluster[0] * options->cluster[1] * options->cluster[2];
  create_fibers(m.threads * m.cluster);
  declare(arguments, count);
  guard_signals(true);
  bool ok = true;
  try {
    run_grid(options->cluster);
  } catch (const Failure&) {
    ok = false;
  }
  guard_signals(false);
  m.current = nullptr;
  if (ok && m.check) ok = outputs_complete();
  *statistics = m.statistics;
  return !ok;
}
// What went wrong: a code, a sentence, a place (file:line, or library+offset for addr2line), then the block and thread as numbers.
const char* poem_error(int part) {
  static std::string text;
  const Error& e = machine.error;
  switch (part) {
    case 0:
      text = e.code;
      break;
    case 1:
      text = e.message;
      break;
    case 2:
      text = e.place;
      break;
    default:
      text = e.thread < 0 ? "" : concat(e.block.x, " ", e.block.y, " ", e.block.z, " ", e.thread);
  }
  return text.c_str();
}
}
