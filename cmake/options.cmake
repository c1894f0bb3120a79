option(RELUME_TESTS "Build the tests" ON)
option(RELUME_FUZZ "Build the fuzz targets (clang)" OFF)
set(RELUME_SANITIZE "" CACHE STRING "Sanitizers to build with, as -fsanitize takes them")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

add_library(relume_options INTERFACE)
target_compile_options(relume_options INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror
  -Wno-missing-field-initializers  # fields left out of a designated initialiser have their defaults
  -fno-math-errno -fno-trapping-math)  # without the first, g++ leaves sqrtf scalar
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(relume_options INTERFACE -Wno-pass-failed)  # `omp simd` is a wish where a loop calls log or exp
endif()
if(RELUME_SANITIZE)
  target_compile_options(relume_options INTERFACE -fsanitize=${RELUME_SANITIZE} -fno-omit-frame-pointer -g
    -Wno-maybe-uninitialized -Wno-unknown-warning-option)  # false alarms of g++ under sanitizers; clang lacks it
  target_link_options(relume_options INTERFACE -fsanitize=${RELUME_SANITIZE})
endif()
