// wgmma.cpp: matrix products of a warpgroup, issued together by 128 threads and carried out when the machine likes.
#include <algorithm>

#include "arithmetic.h"

namespace poem::emu {

// All 128 threads of the warpgroup come; `last` runs once, for the thread that completes the set.
template <class Each, class Last> static void together(const char* operation, Each each, Last last, Site site) {
  Fiber& me = *machine.current;
  const int group = me.id / 128;
  Warpgroup& w = me.block->warpgroups[group];
  if (machine.threads % 128)
    fail("emu.protocol", concat(operation, " in a block of ", machine.threads, " threads: whole warpgroups are needed"), site);
  if (w.arrived && strcmp(w.operation, operation))
    fail("emu.divergence", concat("a warpgroup diverges: ", operation, " meets ", w.operation, " of other threads"), site);
  w.operation = operation;
  each(w, me.id % 128);
  if (++w.arrived < 128) {
    wait_as(State::warpgroup, operation, site);
    return;
  }
  w.arrived = 0;
  last(w);
  Fiber* first = &me - me.id % 128;
  for (int i = 0; i < 128; ++i)
    if (first + i != &me && first[i].state == State::warpgroup) wake(first[i]);
}

// --------------------------------------------------------------------------------------------------------------- operands
struct Operand {
  uint32_t start, leading, stride, width, mask;
  bool transposed;
  int element;  // bytes

  Operand(uint64_t descriptor, bool transposed_, int element_, Site site) : transposed(transposed_), element(element_) {
    start = (descriptor & 0x3fff) << 4;
    leading = (descriptor >> 16 & 0x3fff) << 4;
    stride = (descriptor >> 32 & 0x3fff) << 4;
    const int mode = descriptor >> 62;
    width = mode == 0 ? 16 : mode == 1 ? 128 : mode == 2 ? 64 : 32;
    mask = width / 16 - 1;
    if (descriptor >> 49 & 7) fail("emu.protocol", "a matrix descriptor with a base offset", site);
    if (start >> 7 & mask)
      fail("emu.misaligned", concat("a wgmma operand at shared offset ", start, " begins inside the pattern of its swizzle"), site);
  }
  // 16 bytes of the operand: for `line` a row and `chunk` half of K, or, if transposed, for `line` along K and `chunk` 8 rows.
  uint32_t address(int line, int chunk) const {
    if (width == 16) {
      const uint32_t inner = line % 8 * 16, by_line = line / 8, by_chunk = chunk;
      return transposed ? start + inner + by_line * leading + by_chunk * stride : start + inner + by_line * stride + by_chunk * leading;
    }
    const uint32_t per_row = width / 16;
    uint32_t a = start + line % 8 * width + line / 8 * stride;
    a += transposed ? chunk % per_row * 16 + chunk / per_row * leading : chunk * 16;
    return a ^ (a >> 7 & mask) << 4;
  }
  template <class Visit> void visit(int rows, Visit visit) const {  // visit(address, row of its first element, k of its first element)
    const int per_chunk = 16 / element;
    if (transposed)
      for (int k = 0; k < 16; ++k)
        for (int chunk = 0; chunk < rows / 8; ++chunk) visit(address(k, chunk), chunk * 8, k);
    else
      for (int row = 0; row < rows; ++row)
        for (int chunk = 0; chunk < 2; ++chunk) visit(address(row, chunk), row, chunk * per_chunk);
  }
  template <class Store> void load(const uint8_t* arena, int rows, Format format, Store store) const {  // store(row, k, value)
    visit(rows, [&](uint32_t address, int row, int k) {
      for (int i = 0; i < 16 / element; ++i) {
        uint32_t bits = 0;
        memcpy(&bits, arena + address + i * element, element);
        store(transposed ? row + i : row, transposed ? k : k + i, element_value(format, bits));
      }
    });
  }
};
template <class Visit> static void visit_shared(const Product& p, Visit visit) {
  const int element = bytes_of(p.format);
  if (!p.a_in_registers) Operand(p.a, p.transposed_a, element, p.site).visit(64, visit);
  Operand(p.b, p.transposed_b, element, p.site).visit(p.n, visit);
}

// ------------------------------------------------------------------------------------------------------- issue and result
static void begin(Block& b, int group, const Product& p) {
  Fiber* const warps = &machine.fibers[b.rank * machine.threads + group * 128];
  Fiber* const viewers[] = {warps, warps + 32, warps + 64, warps + 96};
  visit_shared(p, [&](uint32_t address, int, int) {
    shared_bounds(b, address, 16, p.site);
    if (machine.check) async_read_begin(b, address, 16, viewers, 4, "wgmma", p.site);
  });
}
static void compute(Block& b, Product& p) {
  static float a[64][32], b_by_k[32][256], d[256];
  const int k = 32 / bytes_of(p.format), bits = 256 / k;
  p.computed = true;
  ++machine.statistics.products;
  Operand(p.b, p.transposed_b, bytes_of(p.format), p.site).load(b.arena, p.n, p.format, [](int row, int i, float v) {
    b_by_k[i][row] = v;
  });
  if (!p.a_in_registers)
    Operand(p.a, p.transposed_a, bytes_of(p.format), p.site).load(b.arena, 64, p.format, [](int row, int i, float v) { a[row][i] = v; });
  else
    for (int t = 0; t < 128; ++t)
      for (int i = 0; i < 4; ++i)
        for (int e = 0; e < k / 8; ++e)
          a[t / 32 * 16 + t % 32 / 4 + i % 2 * 8][t % 4 * (k / 8) + i / 2 * (k / 2) + e] =
              element_value(p.format, p.a_registers[t][i] >> bits * e & (bits == 16 ? 0xffff : 0xff));
  for (int row = 0; row < 64; ++row) {
    const int t = row / 16 * 32 + row % 8 * 4, half = row % 16 / 8 * 2;  // the first of the four threads that hold the row
    for (int column = 0; column < p.n; ++column)
      d[column] = p.accumulate ? p.d[t + column % 8 / 2][column / 8 * 4 + half + column % 2] : 0.0f;
    multiply_row<256>(p.n, k, a[row], b_by_k, d, p.format);
    for (int column = 0; column < p.n; ++column) p.d[t + column % 8 / 2][column / 8 * 4 + half + column % 2] = d[column];
  }
}
static void finish(Block& b, int group, Product& p) {
  Warpgroup& w = b.warpgroups[group];
  if (!p.computed) compute(b, p);
  if (!machine.check) return;
  const Stamp stamp{warpgroup_actor(b, group), w.clock + 1};
  visit_shared(p, [&](uint32_t address, int, int) { async_read_end(b, address, 16, stamp); });
  for (int t = 0; t < 128; ++t) {
    w.results_at[t] = p.d[t];
    w.results[t].assign(p.d[t], p.d[t] + p.n / 2);
  }
}

void wgmma_fence() { machine.current->wgmma_fenced = true; }
// A fence orders the thread's own use of accumulators before the products: needed for the first ones and after every change.
static void check_fence(const Warpgroup& w, int i, const float* d, int n, Site site) {
  if (machine.current->wgmma_fenced || !w.open.empty() || !w.groups.empty()) return;
  if (!w.results_at[i]) fail("emu.fence", "a wgmma without a wgmma_fence before it", site);
  if (w.results_at[i] != d || (int)w.results[i].size() != n / 2 || memcmp(w.results[i].data(), d, n * 2))
    fail("emu.fence", "accumulators were written since the last wgmma, without a wgmma_fence before this one", site);
}
void wgmma(float* d, int n, const uint32_t* a_registers, uint64_t a, uint64_t b, bool accumulate, Format format, bool transposed_a,
           bool transposed_b, Site site) {
  together(
      "wgmma",
      [&](Warpgroup& w, int i) {
        Product& p = w.next;
        if (w.arrived && (p.a != a || p.b != b || p.accumulate != accumulate || p.n != n))
          fail("emu.divergence", "wgmma: descriptors or predicates differ between the threads of a warpgroup", site);
        if (machine.check) check_fence(w, i, d, n, site);
        p.a_in_registers = a_registers;
        p.accumulate = accumulate;
        p.transposed_a = transposed_a;
        p.transposed_b = transposed_b;
        p.n = n;
        p.a = a;
        p.b = b;
        p.format = format;
        p.site = site;
        p.d[i] = d;
        if (a_registers) std::copy(a_registers, a_registers + 4, p.a_registers[i]);
      },
      [&](Warpgroup& w) {
        Block& block = *machine.current->block;
        const int group = machine.current->id / 128;
        begin(block, group, w.next);
        w.next.computed = false;
        w.open.push_back(w.next);
        const bool late = machine.timing == Timing::late || (machine.timing == Timing::random && random_bits() % 2);
        if (late) return;
        for (auto& committed : w.groups)
          for (Product& p : committed)
            if (!p.computed) compute(block, p);  // products of a warpgroup run in order
        for (Product& p : w.open)
          if (!p.computed) compute(block, p);
      },
      site);
}
void wgmma_commit(Site site) {
  together(
      "wgmma_commit", [](Warpgroup&, int) { machine.current->wgmma_fenced = false; },
      [](Warpgroup& w) {
        w.groups.emplace_back(std::move(w.open));
        w.open.clear();
      },
      site);
}
void wgmma_wait(int groups, Site site) {
  together(
      "wgmma_wait", [](Warpgroup&, int) {},
      [groups](Warpgroup& w) {
        Fiber& me = *machine.current;
        const int group = me.id / 128;
        while ((int)w.groups.size() > groups) {
          for (Product& p : w.groups.front()) finish(*me.block, group, p);
          w.groups.pop_front();
        }
        if (!machine.check) return;
        ++w.clock;
        for (int i = 0; i < 128; ++i) learn((&me - me.id % 128)[i], {warpgroup_actor(*me.block, group), w.clock});
      },
      site);
}

// Between a product's issue and the wait its accumulators belong to the tensor core.
void watch_accumulators(const void* p, size_t bytes, bool write, Place place) {
  Fiber& me = *machine.current;
  const Warpgroup& w = me.block->warpgroups[me.id / 128];
  auto check = [&](const Product& product) {
    const auto* d = reinterpret_cast<const uint8_t*>(product.d[me.id % 128]);
    const auto* at = static_cast<const uint8_t*>(p);
    if (at + bytes > d && at < d + product.n * 2)
      fail("emu.async", concat(write ? "write to" : "read of", " an accumulator of a wgmma that has not been waited for"), place);
  };
  for (const Product& product : w.open) check(product);
  for (const auto& group : w.groups)
    for (const Product& product : group) check(product);
}

}  // namespace poem::emu
