#include <fmt/format.h>
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "kernel_tables.h"
#include "relume/backend/backend.h"
#include "relume/base/error.h"
#include "relume/base/units.h"

namespace relume {

namespace {

const cpu::IsaTable& choose_table(const std::string& wanted) {
  const cpu::IsaTable* chosen = nullptr;
  std::string known;
  for (const cpu::IsaTable& table : cpu::isa_tables()) {
    if (!cpu::processor_supports(table.isa)) continue;
    known += (known.empty() ? "" : ", ") + std::string(table.isa);
    if (wanted.empty() || table.isa == wanted) chosen = &table;
  }
  if (!chosen)
    throw Error(ErrorCode::kUsage, fmt::format("unknown instruction set '{}'; this processor and build have {}", wanted, known));
  return *chosen;
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuOptions& options) : table_(choose_table(options.isa)) {
    if (options.threads > 0) omp_set_num_threads(options.threads);
    info_.threads = omp_get_max_threads();
    info_.description = fmt::format("{} thread{}, {}", info_.threads, info_.threads == 1 ? "" : "s", table_.isa);
    info_.kernels = fmt::format("{}, oneDNN {}, products {}", table_.isa, cpu::onednn_version(), table_.isa.starts_with("avx512") ? "packed by shape" : "plain");
    info_.bf16 = table_.isa.starts_with("avx512") && cpu::processor_multiplies_bf16();
    info_.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  }

  [[nodiscard]] std::string_view name() const override { return "cpu"; }
  [[nodiscard]] const DeviceInfo& device() const override { return info_; }
  [[nodiscard]] const KernelTable& kernels() const override { return *table_.kernels; }
  [[nodiscard]] Stream stream() const override { return {}; }

  // Fresh anonymous pages are zero and cost nothing until touched, so that resident memory follows the plan. Huge pages
  // save address translation; a mapping of one huge page and more is aligned to it.
  [[nodiscard]] void* allocate_memory(std::int64_t bytes) override {
    const auto size = static_cast<std::size_t>(bytes);
    void* data = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
      throw Error(ErrorCode::kRuntime, fmt::format("out of memory: {} asked for, {} in this machine; hint: a smaller micro_batch_size, "
                                                   "or 'exact' rematerialization, needs less (relume plan shows how much)",
                                                   format_bytes(bytes), format_bytes(info_.memory_bytes)));
    char* base = static_cast<char*>(data);
    char* aligned = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(base) + kHugePage - 1) / kHugePage * kHugePage);
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), whole = (size + page - 1) / page * page;
    if (aligned > base) munmap(base, static_cast<std::size_t>(aligned - base));
    char* end = base + (size + kHugePage + page - 1) / page * page;
    if (end > aligned + whole) munmap(aligned + whole, static_cast<std::size_t>(end - (aligned + whole)));
    madvise(aligned, whole, MADV_HUGEPAGE);
    return aligned;
  }
  void deallocate(void* data, std::int64_t bytes) noexcept override { munmap(data, static_cast<std::size_t>(bytes)); }
  void copy_to_device(void* destination, const void* source, std::int64_t bytes) override {
    std::memcpy(destination, source, static_cast<std::size_t>(bytes));
  }
  void copy_to_host(void* destination, const void* source, std::int64_t bytes) override {
    std::memcpy(destination, source, static_cast<std::size_t>(bytes));
  }
  void synchronize() override {}

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const cpu::IsaTable& table_;
  DeviceInfo info_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) { return std::make_unique<CpuBackend>(options); }

}  // namespace relume
