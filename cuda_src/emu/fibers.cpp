// fibers.cpp: switching between the threads of a kernel, and what runs next.
#include <csignal>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include "machine.h"

namespace poem::emu {

BuiltIns built_ins;
Machine machine;

namespace {
// Memory with `below` bytes before it and a page behind it that nobody can touch.
void* map_guarded(size_t bytes, size_t below) {
  const size_t page = sysconf(_SC_PAGESIZE);
  auto* p = static_cast<uint8_t*>(mmap(nullptr, below + bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  mprotect(p + below, bytes, PROT_READ | PROT_WRITE);
  return p + below;
}
[[noreturn]] void fiber_main();
}  // namespace

// -------------------------------------------------------------------------------------------------------------- switching
#if defined(__x86_64__) && !defined(POEM_UCONTEXT)
extern "C" void poem_switch(void** save, void* load);
// `pop` and an indirect jump instead of `ret`: the return predictor would be wrong every time.
asm(R"(
.text
.globl poem_switch
.type poem_switch,@function
poem_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  popq %rcx
  jmp *%rcx
.size poem_switch,.-poem_switch
)");
static void switch_context(Context& from, Context& to) { poem_switch(&from, to); }
static void prepare(Fiber& f) {
  auto** top = reinterpret_cast<void**>(f.stack + STACK - 64);
  *--top = nullptr;  // where a caller's return address would be: keeps the stack aligned as the ABI wants it
  *--top = reinterpret_cast<void*>(fiber_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  f.context = top;
}
#else
static void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }
static void prepare(Fiber& f) {
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack;
  f.context.uc_stack.ss_size = STACK;
  f.context.uc_link = nullptr;
  makecontext(&f.context, reinterpret_cast<void (*)()>(fiber_main), 0);
}
#endif

uint64_t random_bits() {  // xorshift64
  uint64_t& r = machine.random;
  r ^= r << 13;
  r ^= r >> 7;
  r ^= r << 17;
  return r;
}

void create_fibers(int count) {
  if ((int)machine.fibers.size() >= count) return;
  const size_t before = machine.fibers.size();
  machine.fibers.resize(count);
  for (size_t i = before; i < machine.fibers.size(); ++i) machine.fibers[i].stack = static_cast<uint8_t*>(map_guarded(STACK, NEAR_STACK));
  size_t ring = 1;
  while (ring < 2 * machine.fibers.size()) ring *= 2;
  machine.queue.resize(ring);
  for (Block& b : machine.blocks)
    if (!b.arena) {  // one stretch for all blocks, so that the address tells the block
      auto* base = static_cast<uint8_t*>(map_guarded((size_t)ARENA * MAX_CLUSTER, NEAR_STACK));
      for (int r = 0; r < MAX_CLUSTER; ++r) machine.blocks[r].arena = base + (size_t)r * ARENA;
    }
}

static void push(const Fiber& f) { machine.queue[machine.tail++ & (machine.queue.size() - 1)] = &f - machine.fibers.data(); }
static Fiber* pop() {
  Machine& m = machine;
  if (m.head == m.tail) return nullptr;
  const uint32_t mask = m.queue.size() - 1;
  if (m.order == Turns::random) std::swap(m.queue[(m.head + random_bits() % (m.tail - m.head)) & mask], m.queue[m.head & mask]);
  return &m.fibers[m.order == Turns::lifo ? m.queue[--m.tail & mask] : m.queue[m.head++ & mask]];
}
void start(Fiber& f) {
  prepare(f);
  f.state = State::ready;
  push(f);
}
void wake(Fiber& f) {
  f.state = State::ready;
  push(f);
}
static void enter(Fiber& f, Context& save) {
  machine.current = &f;
  built_ins.thread = f.thread;
  built_ins.block = f.block->index;
  ++machine.statistics.switches;
  switch_context(save, f.context);
}

// Operations of the copy engine run when nothing else can, or, in a random order, now and then before.
static void run_in_flight() {
  Machine& m = machine;
  while (!m.in_flight.empty() && (m.head == m.tail || (m.order == Turns::random && random_bits() % 8 == 0))) {
    const size_t i = m.order == Turns::lifo ? m.in_flight.size() - 1 : m.order == Turns::random ? random_bits() % m.in_flight.size() : 0;
    auto operation = std::move(m.in_flight[i]);
    m.in_flight.erase(m.in_flight.begin() + i);
    operation();
  }
}
void when_it_suits(std::function<void()> operation) {
  const bool late = machine.timing == Timing::late || (machine.timing == Timing::random && random_bits() % 2);
  if (late) machine.in_flight.push_back(std::move(operation));
  else operation();
}
static void yield() {
  Fiber& me = *machine.current;
  run_in_flight();
  Fiber* next = pop();
  if (next == &me) return;  // an operation that just ran woke it
  if (next) enter(*next, me.context);
  else {
    machine.current = nullptr;
    switch_context(me.context, machine.main);
  }
}
void wait_as(State state, const char* operation, Site site) {
  Fiber& me = *machine.current;
  me.state = state;
  me.operation = operation;
  me.site = site;
  yield();
}
void run_ready() {
  if (Fiber* f = pop()) enter(*f, machine.main);
  machine.current = nullptr;
  if (machine.failed) throw Failure{};
}

namespace {
void fiber_main() {
  machine.entry(machine.arguments);
  Fiber& me = *machine.current;
  leave(me);
  me.state = State::done;
  yield();
  __builtin_unreachable();
}
}  // namespace

// ----------------------------------------------------------------------------------------------------------------- failing
Part::Part(long long number, int) : begin(nullptr), length(snprintf(digits, sizeof digits, "%lld", number)) {}
std::string join_parts(std::initializer_list<Part> parts) {
  std::string text;
  for (const Part& p : parts) text.append(p.begin ? p.begin : p.digits, p.length);
  return text;
}
std::string text_of(Site site) { return concat(site.file, ":", site.line); }
static std::string text_of(const void* pc) {
  Dl_info info;
  char buffer[600];
  if (dladdr(pc, &info) && info.dli_fname)
    snprintf(buffer, sizeof buffer, "%s+0x%lx", info.dli_fname, (unsigned long)((const char*)pc - (const char*)info.dli_fbase));
  else snprintf(buffer, sizeof buffer, "%p", pc);
  return buffer;
}
void fail(const char* code, const std::string& message, Place place) {
  Machine& m = machine;
  m.failed = true;
  m.error = {code, message, place.pc ? text_of(place.pc) : place.site.file ? text_of(place.site) : "", {}, -1};
  if (!m.current) throw Failure{};
  m.error.block = m.current->block->index;
  m.error.thread = m.current->id;
  // The fibers are left as they are: their stacks are used again by the next launch.
  Context abandoned;
  m.current = nullptr;
  switch_context(abandoned, m.main);
  __builtin_unreachable();
}

static void on_signal(int number, siginfo_t* info, void* context) {
  Machine& m = machine;
  if (!m.current) {
    signal(number, SIG_DFL);
    raise(number);
    return;
  }
  const void* pc = nullptr;
#if defined(__x86_64__) && defined(__linux__)
  pc = reinterpret_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[16] + 1);  // REG_RIP; reports point before it
#else
  (void)context;
#endif
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr), stack = reinterpret_cast<uintptr_t>(m.current->stack);
  if (address < stack && stack - address <= NEAR_STACK) fail("emu.stack", "a thread uses more than 64 KB of local memory", pc);
  char buffer[80];
  snprintf(buffer, sizeof buffer, "access to memory that does not exist, at %p", info->si_addr);
  fail("emu.bounds", buffer, pc);
}
void guard_signals(bool on) {
  static struct sigaction segv, bus;
  static stack_t stack;
  static uint8_t* alternate = new uint8_t[64 << 10];
  if (on) {
    stack_t ours{};
    ours.ss_sp = alternate;
    ours.ss_size = 64 << 10;
    sigaltstack(&ours, &stack);
    struct sigaction action{};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // the handler does not return, so the signal must not stay blocked
    sigaction(SIGSEGV, &action, &segv);
    sigaction(SIGBUS, &action, &bus);
  } else {
    sigaction(SIGSEGV, &segv, nullptr);
    sigaction(SIGBUS, &bus, nullptr);
    sigaltstack(&stack, nullptr);
  }
}

}  // namespace poem::emu
