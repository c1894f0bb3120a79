// A tokenizer.json: an accepted one encodes any text and decodes what it made. Behind a NUL byte the input is text for it.
#include "byte_level_bpe.h"
#include "fuzz.h"
#include "relume/base/utf8.h"

using namespace relume;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  const std::size_t end = input.find('\0');
  const fuzz::File file(data, std::min(end, size));
  fuzz::may_refuse([&] {
    const auto tokenizer = load_byte_level_bpe(file.path(), {});
    const std::string text = end == std::string_view::npos ? "a 1\n<|x|> \xC3\xA9" : replace_invalid_utf8(input.substr(end + 1));
    const auto ids = tokenizer->encode(text);
    (void)tokenizer->decode(ids, true);
    TextStream stream(*tokenizer);
    for (const std::int32_t id : ids) (void)stream.push(id);
    (void)stream.finish();
  });
  return 0;
}
