# Defines XXHash::xxhash; Debian's package has no CMake config of its own.
find_path(XXHash_INCLUDE_DIR xxhash.h)
find_library(XXHash_LIBRARY xxhash)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(XXHash REQUIRED_VARS XXHash_LIBRARY XXHash_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install libxxhash-dev")
if(XXHash_FOUND AND NOT TARGET XXHash::xxhash)
  add_library(XXHash::xxhash INTERFACE IMPORTED)
  target_include_directories(XXHash::xxhash INTERFACE ${XXHash_INCLUDE_DIR})
  target_link_libraries(XXHash::xxhash INTERFACE ${XXHash_LIBRARY})
endif()
