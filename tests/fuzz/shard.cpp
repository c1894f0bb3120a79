// A token shard, by its header and as raw tokens: an accepted one can be read to its end.
#include <vector>

#include "fuzz.h"
#include "relume/io/token_shard.h"

using namespace relume;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::File file(data, size);
  for (const std::optional<ShardForm> form : {std::optional<ShardForm>(), std::optional(ShardForm::kRawU16)})
    fuzz::may_refuse([&] {
      const TokenShard shard(file.path(), form);
      if (shard.tokens() > static_cast<std::int64_t>(size)) std::abort();
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(shard.tokens()));
      std::int64_t trained = 0;
      for (std::int64_t i = 0; i < shard.tokens(); ++i) trained += shard.trained(i);
      if (trained > shard.tokens()) std::abort();
      shard.read(0, shard.tokens(), 1000, tokens.data());
    });
  return 0;
}
