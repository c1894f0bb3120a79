# Writes the commit that is built into commit.h, at every build; the file changes only with the commit. "unknown" outside a git
# checkout. Included after relume_core is defined; as a script (-P) it does the writing.
if(CMAKE_SCRIPT_MODE_FILE)
  cmake_minimum_required(VERSION 3.25)
  execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=10
                  OUTPUT_VARIABLE RELUME_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT RELUME_COMMIT)
    set(RELUME_COMMIT unknown)
  endif()
  file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define RELUME_COMMIT \"@RELUME_COMMIT@\"\n" @ONLY)
  return()
endif()

set(RELUME_COMMIT_HEADER ${CMAKE_CURRENT_BINARY_DIR}/generated/commit.h)
add_custom_target(relume_commit
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR} -DOUTPUT=${RELUME_COMMIT_HEADER} -P ${CMAKE_CURRENT_LIST_FILE}
  BYPRODUCTS ${RELUME_COMMIT_HEADER})
add_dependencies(relume_core relume_commit)
target_include_directories(relume_core PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/generated)
set_source_files_properties(src/base/version.cpp PROPERTIES COMPILE_DEFINITIONS "RELUME_VERSION=\"${PROJECT_VERSION}\""
                            OBJECT_DEPENDS ${RELUME_COMMIT_HEADER})
