# Defines SentencePiece::sentencepiece (the library and its trainer); Debian's package has no CMake config of its own.
find_path(SentencePiece_INCLUDE_DIR sentencepiece_processor.h)
find_library(SentencePiece_LIBRARY sentencepiece)
find_library(SentencePiece_TRAIN_LIBRARY sentencepiece_train)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SentencePiece
  REQUIRED_VARS SentencePiece_LIBRARY SentencePiece_TRAIN_LIBRARY SentencePiece_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install libsentencepiece-dev")
if(SentencePiece_FOUND AND NOT TARGET SentencePiece::sentencepiece)
  add_library(SentencePiece::sentencepiece INTERFACE IMPORTED)
  target_include_directories(SentencePiece::sentencepiece INTERFACE ${SentencePiece_INCLUDE_DIR})
  target_link_libraries(SentencePiece::sentencepiece INTERFACE ${SentencePiece_TRAIN_LIBRARY} ${SentencePiece_LIBRARY})
endif()
