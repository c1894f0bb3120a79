#include "allocation_counter.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

std::atomic<bool> g_counting{false};
std::atomic<std::int64_t> g_ours{0}, g_onednn{0}, g_onednn_bytes{0};

void count(std::size_t bytes, void* caller) {
  if (!g_counting) return;
  Dl_info where = {};
  if (dladdr(caller, &where) != 0 && where.dli_fname && std::strstr(where.dli_fname, "libdnnl")) {
    ++g_onednn;
    g_onednn_bytes += static_cast<std::int64_t>(bytes);
  } else {
    ++g_ours;
  }
}

}  // namespace

void* operator new(std::size_t bytes) {
  count(bytes, __builtin_return_address(0));
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace relume::test {

Allocations count_allocations(const std::function<void()>& run) {
  g_ours = g_onednn = g_onednn_bytes = 0;
  g_counting = true;
  run();
  g_counting = false;
  return {g_ours, g_onednn, g_onednn_bytes};
}

}  // namespace relume::test
