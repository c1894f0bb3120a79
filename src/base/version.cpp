#include "relume/base/version.h"

#include "commit.h"

namespace relume {
std::string_view version() { return RELUME_VERSION; }
std::string_view commit() { return RELUME_COMMIT; }
}  // namespace relume
