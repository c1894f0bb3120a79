# Debian packages, through find_package only. Everything that differs between Debian 12 and 13 and that CMake can
# settle is settled here; the rest is in tests/catch.h (Catch2 2 or 3) and kernels/matmul_onednn.cpp (oneDNN 2 or 3).
list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_SOURCE_DIR}/cmake)

find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(OpenMP REQUIRED)
find_package(dnnl CONFIG REQUIRED)
find_package(SentencePiece REQUIRED)
find_package(XXHash REQUIRED)
find_package(PCRE2 REQUIRED)
find_package(Utf8proc REQUIRED)

add_library(relume_dependencies INTERFACE)
target_link_libraries(relume_dependencies INTERFACE
  CLI11::CLI11 nlohmann_json::nlohmann_json DNNL::dnnl SentencePiece::sentencepiece XXHash::xxhash PCRE2::pcre2 Utf8proc::utf8proc OpenMP::OpenMP_CXX)

if(RELUME_TESTS)
  find_package(Catch2 REQUIRED)
  add_library(relume_catch INTERFACE)
  if(Catch2_VERSION VERSION_LESS 3)
    target_link_libraries(relume_catch INTERFACE Catch2::Catch2)
    target_compile_definitions(relume_catch INTERFACE RELUME_CATCH2_V2)
  else()
    target_link_libraries(relume_catch INTERFACE Catch2::Catch2WithMain)
  endif()
endif()
