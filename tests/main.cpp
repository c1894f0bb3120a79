#ifdef RELUME_CATCH2_V2  // version 3 brings its own main
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
