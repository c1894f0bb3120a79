# Defines PCRE2::pcre2 (the 8-bit library); Debian's package has no CMake config of its own.
find_path(PCRE2_INCLUDE_DIR pcre2.h)
find_library(PCRE2_LIBRARY pcre2-8)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PCRE2 REQUIRED_VARS PCRE2_LIBRARY PCRE2_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install libpcre2-dev")
if(PCRE2_FOUND AND NOT TARGET PCRE2::pcre2)
  add_library(PCRE2::pcre2 INTERFACE IMPORTED)
  target_include_directories(PCRE2::pcre2 INTERFACE ${PCRE2_INCLUDE_DIR})
  target_link_libraries(PCRE2::pcre2 INTERFACE ${PCRE2_LIBRARY})
endif()
