# RELUME_COMMIT: the commit the sources were configured at, "unknown" outside a git checkout.
execute_process(COMMAND git -C ${CMAKE_CURRENT_SOURCE_DIR} describe --always --dirty --abbrev=10
                OUTPUT_VARIABLE RELUME_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT RELUME_COMMIT)
  set(RELUME_COMMIT unknown)
endif()
set_source_files_properties(src/base/version.cpp PROPERTIES
  COMPILE_DEFINITIONS "RELUME_COMMIT=\"${RELUME_COMMIT}\";RELUME_VERSION=\"${PROJECT_VERSION}\"")
