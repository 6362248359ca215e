// tensor.cpp: ldmatrix, stmatrix and mma.sync.
#include <algorithm>

#include "../prelude.cuh"
#include "arithmetic.h"

namespace poem::emu {

Values::Values() {
  for (int i = 0; i < 256; ++i) {
    e4m3[i] = to_float(poem::e4m3{(uint8_t)i});
    e5m2[i] = to_float(poem::e5m2{(uint8_t)i});
  }
  for (int i = 0; i < 65536; ++i) f16[i] = to_float(poem::f16{(uint16_t)i});
}
const Values values;

// ------------------------------------------------------------------------------------------------------ matrices of 8 x 8
static void check_row(uint32_t row, const char* operation, Site site) {
  if (row % 16) fail("emu.misaligned", concat(operation, ": the address of a row must be a multiple of 16"), site);
}
// How often the 32 banks must be visited for the 8 rows of a matrix: 1 if the rows lie in different 16-byte columns of the 128-byte bank
// line.
static int wavefronts(const uint32_t* rows) {
  int hits[8] = {}, worst = 1;
  for (int i = 0; i < 8; ++i) worst = std::max(worst, ++hits[rows[i] / 16 % 8]);
  return worst;
}
struct MatrixSlot {
  uint32_t row, registers[4];
};
void ldmatrix(uint32_t* registers, int count, bool transposed, uint32_t row, Site site) {
  Fiber& me = *machine.current;
  check_row(row, "ldmatrix", site);
  if (me.lane < 8 * count) {
    shared_bounds(*me.block, row, 16, site);
    if (machine.check) shared_read(*me.block, row, 16, as_self(me), site);
  }
  MatrixSlot slot{row, {}};
  collective(
      ~0u, "ldmatrix", &slot, sizeof slot, &slot, sizeof slot,
      [count, transposed, arena = me.block->arena](Collective& c) {
        MatrixSlot slots[32];
        uint32_t rows[32];
        for (int l = 0; l < 32; ++l) {
          memcpy(&slots[l], c.slots[l], sizeof slots[l]);
          rows[l] = slots[l].row;
        }
        for (int m = 0; m < count; ++m) {
          ++machine.statistics.matrix_phases;
          machine.statistics.matrix_wavefronts += wavefronts(rows + 8 * m);
          for (int l = 0; l < 32; ++l) {
            uint16_t pair[2];
            for (int e = 0; e < 2; ++e) {
              const int r = transposed ? l % 4 * 2 + e : l / 4, column = transposed ? l / 4 : l % 4 * 2 + e;
              memcpy(&pair[e], arena + rows[8 * m + r] + 2 * column, 2);
            }
            slots[l].registers[m] = pair[0] | (uint32_t)pair[1] << 16;
          }
        }
        for (int l = 0; l < 32; ++l) memcpy(c.slots[l], &slots[l], sizeof slots[l]);
      },
      site);
  std::copy(slot.registers, slot.registers + count, registers);
}
void stmatrix(const uint32_t* registers, int count, bool transposed, uint32_t row, Site site) {
  Fiber& me = *machine.current;
  check_row(row, "stmatrix", site);
  MatrixSlot slot{row, {}};
  std::copy(registers, registers + count, slot.registers);
  if (me.lane < 8 * count) {
    shared_bounds(*me.block, row, 16, site);
    if (machine.check) shared_write(*me.block, row, 16, as_self(me), site);
  }
  collective(
      ~0u, "stmatrix", &slot, sizeof slot, &slot, 0,
      [count, transposed, arena = me.block->arena](Collective& c) {
        MatrixSlot slots[32];
        uint32_t rows[32];
        for (int l = 0; l < 32; ++l) {
          memcpy(&slots[l], c.slots[l], sizeof slots[l]);
          rows[l] = slots[l].row;
        }
        for (int m = 0; m < count; ++m) {
          ++machine.statistics.matrix_phases;
          machine.statistics.matrix_wavefronts += wavefronts(rows + 8 * m);
          for (int l = 0; l < 32; ++l)
            for (int e = 0; e < 2; ++e) {
              const int r = transposed ? l % 4 * 2 + e : l / 4, column = transposed ? l / 4 : l % 4 * 2 + e;
              const uint16_t element = slots[l].registers[m] >> 16 * e;
              memcpy(arena + rows[8 * m + r] + 2 * column, &element, 2);
            }
        }
      },
      site);
}

// --------------------------------------------------------------------------------------------------------------- mma.sync
struct MmaSlot {
  float d[4];
  uint32_t a[4], b[2];
};
template <int K> static void mma_of(Collective& c, Format format) {
  constexpr int ELEMENTS = K / 8, BITS = 32 / ELEMENTS;  // of a register
  constexpr uint32_t MASK = BITS == 16 ? 0xffff : 0xff;
  float a[16][K], b[K][8], d[16][8];
  MmaSlot s;
  ++machine.statistics.products;
  for (int l = 0; l < 32; ++l) {
    memcpy(&s, c.slots[l], sizeof s);
    const int g = l / 4, q = l % 4 * ELEMENTS;
    for (int i = 0; i < 4; ++i) {
      d[g + i / 2 * 8][l % 4 * 2 + i % 2] = s.d[i];
      for (int e = 0; e < ELEMENTS; ++e) a[g + i % 2 * 8][q + i / 2 * (K / 2) + e] = element_value(format, s.a[i] >> BITS * e & MASK);
    }
    for (int i = 0; i < 2; ++i)
      for (int e = 0; e < ELEMENTS; ++e) b[q + i * (K / 2) + e][g] = element_value(format, s.b[i] >> BITS * e & MASK);
  }
  for (int row = 0; row < 16; ++row) multiply_row<8>(8, K, a[row], b, d[row], format);
  for (int l = 0; l < 32; ++l) {
    float result[4];
    for (int i = 0; i < 4; ++i) result[i] = d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
    memcpy(c.slots[l], result, sizeof result);
  }
}
void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Format format, Site site) {
  const MmaSlot slot{{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  const bool wide = is_wide(format);
  collective(
      ~0u, wide ? "mma m16n8k16" : "mma m16n8k32", &slot, sizeof slot, d, sizeof d,
      [wide, format](Collective& c) {
        if (wide) mma_of<16>(c, format);
        else mma_of<32>(c, format);
      },
      site);
}

}  // namespace poem::emu
