// machine.h: the emulated machine, as the parts of the emulator share it.
//
// One fiber stands for one CUDA thread, and one cluster of blocks runs at a time on one thread of the operating system. A fiber runs until
// it has to wait; then the next ready one runs. What the copy engine and the tensor cores do on their own is kept in `in_flight` and
// happens at once, at a random moment or as late as allowed, as the launch asks.
#pragma once
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emu.h"
#include "fiber.h"

namespace poem::emu {

constexpr int MAX_THREADS = 1024;  // of a block
constexpr int MAX_CLUSTER = 8;     // blocks of a cluster
constexpr int MAX_MBARRIERS = 64;  // of a block
constexpr int WARPGROUPS = MAX_THREADS / 128;
constexpr uint32_t ARENA = 256 << 10;      // room for one block's shared memory, and the stride between blocks
constexpr uint32_t DYNAMIC = 32 << 10;     // where dynamic shared memory begins; static shared memory lies below
constexpr uint32_t LINE = 16;              // bytes that may share what is known of them
constexpr size_t STACK = 64 << 10;         // of a fiber
constexpr size_t NEAR_STACK = 1 << 20;     // below a stack: inaccessible, so that a large frame cannot reach into other memory
constexpr uint32_t CLUSTER_BIT = 1 << 24;  // an address of a given block is (rank + 1) * CLUSTER_BIT + offset

// ---------------------------------------------------------------------------------------------- what the checker remembers
// An access by an actor at a moment of that actor's clock. Actors: the threads of the cluster, then for each block its warpgroups'
// products, then the copies that complete on each of its mbarriers.
struct Stamp {
  uint32_t actor = 0, clock = 0;
};
// Up to which clock of each actor everything has been seen, and up to which the asynchronous proxy may use it.
struct Knowledge {
  std::vector<uint32_t> seen, fenced;
};
// What is known of a byte of shared memory, or of a line of them with one history. It counts as never written unless `generation` is that
// of the running cluster.
struct Cell {
  uint32_t generation = 0;
  Stamp write, reads[2];
  uint16_t async_readers = 0;                                            // products and stores that have not finished reading
  uint8_t readers = 0;                                                   // of `reads`; 3 means that more are in Block::many_readers
  uint8_t written : 1, pending : 1, generic : 1, atomic : 1, split : 1;  // split: a line whose bytes have their own cells
  Cell() : written(0), pending(0), generic(0), atomic(0), split(0) {}
};

// ----------------------------------------------------------------------------------------------------------- the machine
enum class State : uint8_t { ready, block_barrier, warp, warpgroup, mbarrier, named_barrier, cluster_barrier, done };

struct Copy {
  uint32_t target;
  const void* source;
  uint32_t size, bytes;
  Site site;
};
// A bulk store: reads shared memory when it runs. `finish` ends the checker's watch over the source.
struct Store {
  std::function<void()> run, finish;
};

struct Block;
struct Fiber {
  Context context;
  uint8_t* stack = nullptr;
  State state = State::done;
  Block* block = nullptr;
  uint3 thread;
  int id = 0, lane = 0, warp = 0;
  uint32_t actor = 0;
  Site site{};  // of the operation it waits in
  const char* operation = nullptr;
  uint32_t waits_for = 0;
  std::vector<Copy> copies;
  std::deque<std::vector<Copy>> copy_groups;
  std::vector<Store> stores;
  std::deque<std::vector<Store>> store_groups;
  uint32_t cluster_phase = 0;
  bool cluster_arrived = false, dependency_waited = false, wgmma_fenced = false;
  uint32_t clock = 0, epoch = 0;  // `knows` is current if `epoch` is the block's
  Knowledge knows;
};

// Lanes deposit, the last one computes for all, each takes its slot.
struct Collective {
  unsigned mask, arrived;
  int left;
  const char* operation;
  alignas(16) uint8_t slots[32][64];
};
struct Product {
  float* d[128];
  uint32_t a_registers[128][4];
  bool a_in_registers, accumulate, transposed_a, transposed_b;
  int n;
  uint64_t a, b;
  Format format;
  Site site;
  bool computed;
};
struct Warpgroup {
  int arrived = 0;
  const char* operation = nullptr;
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
  Product next;
  uint32_t clock = 0;  // of its products, as an actor
  int registers = 0;
  std::vector<float> results[128];  // accumulators as the last product left them
  float* results_at[128] = {};
};
struct Mbarrier {
  uint32_t offset, count, pending, phase = 0;
  int64_t bytes = 0;
  uint32_t copies = 0;
  bool visible = false;  // to the copy engine
  Stamp initialised;
  Knowledge open, done;
};
struct NamedBarrier {
  int arrived = 0, need = 0;
  Knowledge knows;
};
struct Block {
  int rank = 0;
  uint3 index;
  uint32_t number = 0;  // in the grid, row-major
  uint8_t* arena = nullptr;
  int live = 0, waiting = 0;
  Site barrier_site{};
  int any = 0, count = 0, reduced_any = 0, reduced_count = 0;
  std::vector<Collective> collectives[MAX_THREADS / 32];
  std::vector<Mbarrier> mbarriers;
  NamedBarrier named[16];
  Warpgroup warpgroups[WARPGROUPS];
  uint32_t epoch = 1, epoch_start = 1;  // a block barrier begins an epoch: its threads then know all of each other
  bool learned = false;                 // something of other actors, in this epoch
  Knowledge base;                       // what all threads knew when the epoch began
  std::vector<Cell> lines, bytes;
  std::unordered_map<uint32_t, std::vector<Stamp>> many_readers;
  uint32_t interval = 0;  // of its writes to global memory: see check_global.cpp
  std::vector<std::pair<uint32_t, uint32_t>> acquired, heard;
  bool fenced_writes = false;
};

enum class Direction : int { constant, read, write, update, scratch };
struct Range {
  uintptr_t low, high;
  Direction direction;
  const char* name;
  std::vector<uint64_t> shape;
  uint32_t element_bits;
  const char* dtype;
  std::vector<uint8_t> written;
  std::vector<uint32_t> writer, reader;                       // the interval that wrote or read a byte; ~0 for several readers
  std::vector<Stamp> write, read;                             // the thread that did so last
  std::unordered_map<size_t, std::vector<Stamp>> more_reads;  // by others of its block, not ordered before that
};

enum class Turns : int { fifo, lifo, random };
enum class Timing : int { early, late, random };

struct Failure {};  // thrown where no fiber runs
struct Error {
  std::string code, message, place;
  uint3 block{};
  int thread = -1;
};
struct Statistics {
  uint64_t switches, products, collectives, barriers, matrix_phases, matrix_wavefronts, static_shared;
};

struct Machine {
  Turns order;
  Timing timing;
  bool check = false, overlaps = false;
  int fp8_bits = 13;
  uint64_t random = 1;
  int threads = 0, cluster = 1;
  uint32_t dynamic_bytes = 0, static_bytes = 0, generation = 0;
  std::vector<std::pair<const void*, uint32_t>> statics;
  Entry entry = nullptr;
  void** arguments = nullptr;
  Block blocks[MAX_CLUSTER];
  std::vector<Fiber> fibers;
  Fiber* current = nullptr;
  Context main;
  std::vector<uint32_t> queue;
  uint32_t head = 0, tail = 0;
  std::vector<std::function<void()>> in_flight;
  bool muted = false;  // the checker looks away inside an atomic
  uint32_t cluster_arrived = 0, cluster_live = 0, cluster_phase = 0;
  Knowledge cluster_open, cluster_done;
  std::vector<Range> ranges;
  std::vector<uint32_t> interval_block;  // which block an interval belongs to
  std::unordered_map<uintptr_t, std::vector<std::pair<uint32_t, uint32_t>>> published;
  Statistics statistics{};
  Error error;
  bool failed = false;
};
extern Machine machine;

// Where in the kernel's text something happened: a call site, or a return address that addr2line turns into one.
struct Place {
  const void* pc = nullptr;
  Site site{};
  Place(Site s) : site(s) {}
  Place(const void* p) : pc(p) {}
};
[[noreturn]] void fail(const char* code, const std::string& message, Place place);
std::string text_of(Site site);
// A message from strings and whole numbers.
struct Part {
  const char* begin;
  size_t length;
  char digits[24];
  Part(const char* s) : begin(s), length(strlen(s)) {}
  Part(const std::string& s) : begin(s.data()), length(s.size()) {}
  template <class N, class = std::enable_if_t<std::is_integral_v<N>>> Part(N number) : Part((long long)number, 0) {}
  Part(long long number, int);
};
std::string join_parts(std::initializer_list<Part> parts);
template <class... A> __attribute__((noinline, cold)) std::string concat(const A&... parts) { return join_parts({Part(parts)...}); }

// fibers.cpp
uint64_t random_bits();
void create_fibers(int count);
void start(Fiber& fiber);
void run_ready();
void wait_as(State state, const char* operation, Site site);
void wake(Fiber& fiber);
void when_it_suits(std::function<void()> operation);
void guard_signals(bool on);

// collectives.cpp
size_t deposit(unsigned mask, const char* operation, const void* in, size_t bytes, Site site);
void wake_lanes(unsigned mask);
// Lanes deposit `in`, the last one lets `compute` turn all slots into results, each takes its own as `out`.
template <class Compute> void collective(unsigned mask, const char* operation, const void* in, size_t in_bytes, void* out, size_t out_bytes,
                                         Compute compute, Site site) {
  Fiber& me = *machine.current;
  auto& all = me.block->collectives[me.warp];
  const size_t which = deposit(mask, operation, in, in_bytes, site);  // an index: the vector may grow while we wait
  if (all[which].arrived != mask) {
    wait_as(State::warp, operation, site);
  } else {
    compute(all[which]);
    wake_lanes(mask);
  }
  memcpy(out, all[which].slots[me.lane], out_bytes);
  --all[which].left;
}
void leave(Fiber& fiber);

// async.cpp, tma.cpp, wgmma.cpp
Block& block_of(uint32_t address);
inline uint32_t offset_of(uint32_t address) { return address & (CLUSTER_BIT - 1); }
Mbarrier& mbarrier_at(Block& block, uint32_t offset, Site site);
void arrive_bytes(Block& block, uint32_t bar, int64_t bytes, Site site);
void arrive_one(Block& block, uint32_t bar, Site site);
uint32_t begin_copy_on(Mbarrier& bar);
uint32_t copies_actor(const Block& block, const Mbarrier& bar);
void watch_accumulators(const void* p, size_t bytes, bool write, Place place);
std::string name_of_actor(uint32_t actor);

// happens_before.cpp
uint32_t actors();
uint32_t warpgroup_actor(const Block& block, int group);
void next_epoch(Block& block);
void release(Fiber& fiber, Knowledge& to);
void acquire(Fiber& fiber, const Knowledge& from);
void learn(Fiber& fiber, Stamp of);
void fence_async(Fiber& fiber);
bool known_to_proxy(const Fiber& fiber, Stamp stamp);

// check_shared.cpp
bool known(const Fiber& fiber, Stamp stamp);
struct Actor {
  Fiber* viewer;       // whose knowledge judges the access
  Stamp stamp;         // as whom it is remembered
  bool async = false;  // by the asynchronous proxy
};
Actor as_self(Fiber& fiber);
void shared_read(Block& block, uint32_t offset, uint32_t bytes, Actor actor, Place place);
void shared_write(Block& block, uint32_t offset, uint32_t bytes, Actor actor, Place place);
void shared_atomic(Block& block, uint32_t offset, uint32_t bytes, Place place);
void shared_bounds(Block& block, uint32_t offset, uint32_t bytes, Place place);
void pending_begin(Block& block, uint32_t offset, uint32_t bytes, Place place);
void pending_end(Block& block, uint32_t offset, uint32_t bytes);
void async_read_begin(Block& block, uint32_t offset, uint32_t bytes, Fiber* const* viewers, int count, const char* who, Place place);
void async_read_end(Block& block, uint32_t offset, uint32_t bytes, Stamp stamp);

// check_global.cpp
void next_interval(Block& block);
void order_cluster();
void global_access(uintptr_t address, uint32_t bytes, bool write, Place place);
void on_access(const void* p, uint32_t bytes, bool write, Place place);
bool outputs_complete();

}  // namespace poem::emu
