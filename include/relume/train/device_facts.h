// What is measured of a device or asked of the system.
#pragma once
#include "relume/backend/backend.h"
#include "relume/base/cost.h"
#include "relume/config/config.h"

namespace relume {

/// Best rate of a short matrix product, all threads, in flop/s: the peak that MFU and HFU refer to on a CPU.
[[nodiscard]] double measure_peak_flops(Backend& backend, const std::string& precision);

/// Rates of one layer of the config's shape, from timing every node of a training step of it. Takes about a second.
[[nodiscard]] DeviceRates measure_rates(const Config& config, Backend& backend);

/// The rates that predicted times use: the config's where it gives them, else measured once for this device and shape and kept
/// in the cache directory, so that the same plan is made again. An unwritable cache means measuring again.
[[nodiscard]] DeviceRates device_rates(const Config& config, Backend& backend, const std::string& cache_directory);

/// Highest resident memory of this process so far.
[[nodiscard]] std::int64_t peak_rss_bytes();

}  // namespace relume
