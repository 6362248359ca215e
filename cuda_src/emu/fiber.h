// fiber.h: what is kept of a fiber that does not run.
#pragma once

// On x86-64 a switch is six pushes and a jump, 2.5 ns. Elsewhere, or with POEM_UCONTEXT, the C library's swapcontext does it, which enters
// the kernel to save the signal mask: about a hundred times slower, but it runs anywhere.
#if defined(__x86_64__) && !defined(POEM_UCONTEXT)
namespace poem::emu {
using Context = void*;  // its stack pointer
}
#else
#include <ucontext.h>
namespace poem::emu {
using Context = ucontext_t;
}
#endif
