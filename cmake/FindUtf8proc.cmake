# Defines Utf8proc::utf8proc; Debian's package has no CMake config of its own.
find_path(Utf8proc_INCLUDE_DIR utf8proc.h)
find_library(Utf8proc_LIBRARY utf8proc)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Utf8proc REQUIRED_VARS Utf8proc_LIBRARY Utf8proc_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install libutf8proc-dev")
if(Utf8proc_FOUND AND NOT TARGET Utf8proc::utf8proc)
  add_library(Utf8proc::utf8proc INTERFACE IMPORTED)
  target_include_directories(Utf8proc::utf8proc INTERFACE ${Utf8proc_INCLUDE_DIR})
  target_link_libraries(Utf8proc::utf8proc INTERFACE ${Utf8proc_LIBRARY})
endif()
