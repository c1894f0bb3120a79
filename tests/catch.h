// Catch2 2 (Debian 12) or 3 (Debian 13 and newer).
#pragma once
#ifdef RELUME_CATCH2_V2
#include <catch2/catch.hpp>
#else
#include <catch2/catch_all.hpp>
using Catch::Approx;
#endif
