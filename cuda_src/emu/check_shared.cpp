// check_shared.cpp: every access to shared memory against what happened before. Bytes, not words: 8- and 16-bit elements are common.
#include <algorithm>
#include <type_traits>

#include "machine.h"

namespace poem::emu {

static bool alike(const Cell& a, const Cell& b) { return !memcmp(&a, &b, sizeof a); }
static_assert(sizeof(Cell) == 32, "cells are compared as bytes");
static void refresh(Cell& c) {
  if (c.generation == machine.generation) return;
  c = Cell{};
  c.generation = machine.generation;
}
// Calls judge(cell, offset) for every cell of a stretch. The 16 bytes of a line share the line's cell as long as they have one history.
template <class Judge> static void for_cells(Block& b, uint32_t offset, uint32_t bytes, Judge judge) {
  if (b.lines.empty()) {
    b.lines.resize(ARENA / LINE);
    b.bytes.resize(ARENA);
  }
  for (uint32_t at = offset, end = offset + bytes; at < end;) {
    const uint32_t first = at / LINE * LINE, next = std::min(end, first + LINE);
    Cell& line = b.lines[first / LINE];
    refresh(line);
    const bool whole = next - at == LINE;
    if (whole && !line.split) {
      judge(line, first);
    } else {
      Cell* const cells = &b.bytes[first];
      if (!line.split) {
        std::fill_n(cells, LINE, line);
        if (line.readers == 3)
          for (uint32_t i = 1; i < LINE; ++i) b.many_readers[first + i] = b.many_readers[first];
        line.split = 1;
      }
      for (; at < next; ++at) judge(cells[at - first], at);
      if (whole && cells[0].readers < 3 && std::all_of(cells + 1, cells + LINE, [&](const Cell& c) { return alike(c, cells[0]); }))
        line = cells[0];
    }
    at = next;
  }
}
static std::string at(const Block& b, uint32_t offset) {
  const std::string where =
      offset >= DYNAMIC ? concat("dynamic shared memory + ", offset - DYNAMIC) : concat("static shared memory + ", offset);
  return machine.cluster > 1 ? concat(where, " of block ", b.rank, " of the cluster") : where;
}
Actor as_self(Fiber& f) { return {&f, {f.actor, f.clock}}; }

void shared_bounds(Block& b, uint32_t offset, uint32_t bytes, Place place) {
  const bool inside = offset >= DYNAMIC ? offset + bytes <= DYNAMIC + machine.dynamic_bytes : offset + bytes <= machine.static_bytes;
  for (const Mbarrier& m : b.mbarriers)
    if (offset < m.offset + 8 && m.offset < offset + bytes)
      fail("emu.protocol", concat("access of ", bytes, " bytes at ", at(b, offset), ", where an mbarrier is"), place);
  if (inside) return;
  if (offset >= DYNAMIC)
    fail("emu.bounds", concat("access of ", bytes, " bytes at ", at(b, offset), ", which has ", machine.dynamic_bytes), place);
  fail("emu.bounds", concat("access of ", bytes, " bytes at ", at(b, offset), ", past what is declared"), place);
}
static void remember_read(Block& b, uint32_t offset, Cell& c, Stamp s, const Fiber* viewer) {
  // A read that the reader knows of need not be kept: who knows the later one knows it too.
  for (int i = 0; i < std::min<int>(c.readers, 2); ++i)
    if (c.reads[i].actor == s.actor || (viewer && known(*viewer, c.reads[i]))) {
      c.reads[i] = s;
      return;
    }
  if (c.readers < 2) {
    c.reads[c.readers++] = s;
    return;
  }
  c.readers = 3;
  auto& all = b.many_readers[offset];
  auto found = std::lower_bound(all.begin(), all.end(), s.actor, [](const Stamp& a, uint32_t actor) { return a.actor < actor; });
  if (found != all.end() && found->actor == s.actor) *found = s;
  else all.insert(found, s);
}
// The first remembered read, or atomic, that `f` has not been told of.
static const Stamp* unknown_read(Block& b, uint32_t offset, const Cell& c, const Fiber& f) {
  for (int i = 0; i < std::min<int>(c.readers, 2); ++i)
    if (!known(f, c.reads[i])) return &c.reads[i];
  if (c.readers == 3)
    for (const Stamp& s : b.many_readers[offset])
      if (!known(f, s)) return &s;
  return nullptr;
}
static void forget_reads(Block& b, uint32_t offset, Cell& c) {
  if (c.readers == 3) b.many_readers.erase(offset);
  c.readers = 0;
}
static void check_readable(Block& b, uint32_t offset, const Cell& c, const Fiber& viewer, const char* what, Place place) {
  if (c.pending)
    fail("emu.async", concat(what, " of shared memory that a cp.async fills and nobody has waited for, at ", at(b, offset)), place);
  if (!c.written) fail("emu.unwritten", concat(what, " of shared memory that was never written, at ", at(b, offset)), place);
  if (!known(viewer, c.write))
    fail("emu.race",
         concat(what, " of shared memory that ", name_of_actor(c.write.actor), " wrote, with no barrier between, at ", at(b, offset)),
         place);
}

void shared_read(Block& b, uint32_t offset, uint32_t bytes, Actor actor, Place place) {
  shared_bounds(b, offset, bytes, place);
  for_cells(b, offset, bytes, [&](Cell& c, uint32_t i) {
    check_readable(b, i, c, *actor.viewer, "read", place);
    if (c.atomic) {
      if (const Stamp* s = unknown_read(b, i, c, *actor.viewer))
        fail(
            "emu.race",
            concat("read of shared memory that ", name_of_actor(s->actor), " changes by an atomic, with no barrier between, at ", at(b, i)),
            place);
      c.atomic = 0;
      forget_reads(b, i, c);
    }
    remember_read(b, i, c, actor.stamp, actor.viewer);
  });
}
void shared_write(Block& b, uint32_t offset, uint32_t bytes, Actor actor, Place place) {
  shared_bounds(b, offset, bytes, place);
  const Fiber& viewer = *actor.viewer;
  for_cells(b, offset, bytes, [&](Cell& c, uint32_t i) {
    if (c.pending)
      fail("emu.async", concat("write to shared memory that a cp.async fills and nobody has waited for, at ", at(b, i)), place);
    if (c.async_readers)
      fail("emu.async", concat("write to shared memory that an unfinished wgmma or bulk store reads, at ", at(b, i)), place);
    if (c.written && !known(viewer, c.write))
      fail("emu.race",
           concat("write to shared memory that ", name_of_actor(c.write.actor), " wrote, with no barrier between, at ", at(b, i)), place);
    if (const Stamp* s = unknown_read(b, i, c, viewer))
      fail("emu.race", concat("write to shared memory that ", name_of_actor(s->actor), " reads, with no barrier between, at ", at(b, i)),
           place);
    if (actor.async && c.written && c.generic && !known_to_proxy(viewer, c.write))
      fail("emu.fence",
           concat("a copy overwrites shared memory that ", name_of_actor(c.write.actor), " wrote, without fence_async_proxy between, at ",
                  at(b, i)),
           place);
    forget_reads(b, i, c);
    c.write = actor.stamp;
    c.written = 1;
    c.atomic = 0;
    c.generic = actor.stamp.actor < (uint32_t)machine.threads * machine.cluster;
  });
}
// Atomics do not race with each other, and order nothing; against plain accesses they count as reads and writes.
void shared_atomic(Block& b, uint32_t offset, uint32_t bytes, Place place) {
  Fiber& me = *machine.current;
  shared_bounds(b, offset, bytes, place);
  for_cells(b, offset, bytes, [&](Cell& c, uint32_t i) {
    check_readable(b, i, c, me, "atomic", place);
    if (!c.atomic) {
      if (const Stamp* s = unknown_read(b, i, c, me))
        fail("emu.race", concat("atomic on shared memory that ", name_of_actor(s->actor), " reads, with no barrier between, at ", at(b, i)),
             place);
      forget_reads(b, i, c);
      c.atomic = 1;
    }
    remember_read(b, i, c, {me.actor, me.clock}, nullptr);
  });
}

// ------------------------------------------------------------------------------------------- what happens while threads go on
void pending_begin(Block& b, uint32_t offset, uint32_t bytes, Place place) {
  Fiber& me = *machine.current;
  for_cells(b, offset, bytes, [&](Cell& c, uint32_t i) {
    if (c.pending) fail("emu.async", concat("cp.async to shared memory that another cp.async fills, at ", at(b, i)), place);
    if (c.async_readers)
      fail("emu.async", concat("cp.async to shared memory that an unfinished wgmma or bulk store reads, at ", at(b, i)), place);
    if (c.written && !known(me, c.write))
      fail("emu.race",
           concat("cp.async to shared memory that ", name_of_actor(c.write.actor), " wrote, with no barrier between, at ", at(b, i)),
           place);
    if (const Stamp* s = unknown_read(b, i, c, me))
      fail("emu.race", concat("cp.async to shared memory that ", name_of_actor(s->actor), " reads, with no barrier between, at ", at(b, i)),
           place);
    c.pending = 1;
  });
}
void pending_end(Block& b, uint32_t offset, uint32_t bytes) {
  for_cells(b, offset, bytes, [](Cell& c, uint32_t) { c.pending = 0; });
}
void async_read_begin(Block& b, uint32_t offset, uint32_t bytes, Fiber* const* viewers, int count, const char* who, Place place) {
  const std::string what = concat("read by ", who);
  for_cells(b, offset, bytes, [&](Cell& c, uint32_t i) {
    for (int v = 0; v < count; ++v) {
      check_readable(b, i, c, *viewers[v], what.c_str(), place);
      if (c.generic && !known_to_proxy(*viewers[v], c.write))
        fail("emu.fence",
             concat(what, " of shared memory that ", name_of_actor(c.write.actor), " wrote, without fence_async_proxy between, at ",
                    at(b, i)),
             place);
    }
    ++c.async_readers;
  });
}
void async_read_end(Block& b, uint32_t offset, uint32_t bytes, Stamp stamp) {
  for_cells(b, offset, bytes, [&](Cell& c, uint32_t i) {
    --c.async_readers;
    remember_read(b, i, c, stamp, nullptr);
  });
}

}  // namespace poem::emu
