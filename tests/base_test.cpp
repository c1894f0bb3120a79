#include <set>

#include "relume/base/permutation.h"
#include "relume/base/philox.h"
#include "relume/base/units.h"
#include "support.h"

using namespace relume;
using namespace relume::test;

TEST_CASE("philox gives the published known answers") {
  // Random123's kat_vectors for philox4x32-10.
  const PhiloxBlock zero = philox(0, 0, 0), ones = philox(~0ull, ~0ull, ~0ull);
  const PhiloxBlock pi = philox(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull);
  const std::uint32_t expected_zero[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  const std::uint32_t expected_ones[] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  const std::uint32_t expected_pi[] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  for (int i = 0; i < 4; ++i) {
    CHECK(zero.word[i] == expected_zero[i]);
    CHECK(ones.word[i] == expected_ones[i]);
    CHECK(pi.word[i] == expected_pi[i]);
  }
}

TEST_CASE("permute is a permutation that depends on its key") {
  for (std::int64_t n : {1, 2, 3, 7, 64, 1000}) {
    std::set<std::int64_t> seen;
    std::int64_t moved = 0, differs = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t p = permute(i, n, 42);
      CHECK((p >= 0 && p < n));
      seen.insert(p);
      moved += p != i;
      differs += p != permute(i, n, 43);
    }
    CHECK(static_cast<std::int64_t>(seen.size()) == n);
    if (n == 1000) {
      CHECK(moved > 950);
      CHECK(differs > 950);
    }
  }
}

TEST_CASE("bytes are read and written in powers of two") {
  CHECK(parse_bytes("16GiB") == std::int64_t{16} << 30);
  CHECK(parse_bytes("1.5 MiB") == 3 << 19);
  CHECK(parse_bytes("1048576") == 1 << 20);
  CHECK_FALSE(parse_bytes("16GB"));
  CHECK_FALSE(parse_bytes("lots"));
  CHECK_FALSE(parse_bytes("-1GiB"));
  CHECK(format_bytes(96) == "96 B");
  CHECK(format_bytes(std::int64_t{412} << 20) == "412 MiB");
  CHECK(format_bytes((std::int64_t{37} << 30) / 4) == "9.25 GiB");
  CHECK(format_count(487845504) == "487,845,504");
  CHECK(format_duration(1510) == "0:25:10");
}

TEST_CASE("the nearest name is found only if it is near") {
  const std::vector<std::string> known{"learning_rate", "weight_decay", "betas"};
  CHECK(nearest_name("learning_rat", known) == "learning_rate");
  CHECK(nearest_name("zebra", known).empty());
}
