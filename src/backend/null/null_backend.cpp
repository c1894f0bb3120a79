#include "relume/backend/backend.h"
#include "relume/base/error.h"

namespace relume {

namespace {

class NullBackend final : public Backend {
 public:
  explicit NullBackend(std::unique_ptr<Backend> target) : target_(std::move(target)) {}

  [[nodiscard]] std::string_view name() const override { return "null"; }
  [[nodiscard]] const DeviceInfo& device() const override { return target_->device(); }
  [[nodiscard]] const KernelTable& kernels() const override { return target_->kernels(); }
  [[nodiscard]] Stream stream() const override { return {}; }
  [[nodiscard]] void* allocate_memory(std::int64_t) override { refuse(); }
  void deallocate(void*, std::int64_t) noexcept override {}
  void copy_to_device(void*, const void*, std::int64_t) override { refuse(); }
  void copy_to_host(void*, const void*, std::int64_t) override { refuse(); }
  void synchronize() override {}

 private:
  [[noreturn]] static void refuse() { throw Error(ErrorCode::kRuntime, "[null backend] plans only; it has no memory to touch"); }
  std::unique_ptr<Backend> target_;
};

}  // namespace

std::unique_ptr<Backend> make_null_backend(std::unique_ptr<Backend> target) {
  return std::make_unique<NullBackend>(std::move(target));
}

}  // namespace relume
